#include "gpipe/schedule/search/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/search/join.h"
#include "gpipe/schedule/search/loop_pattern.h"
#include "gpipe/schedule/search/optimize.h"
#include "gpipe/schedule/search/search_workload.h"
#include "gpipe/schedule/search/searched.h"
#include "gpipe/schedule/search/slack.h"
#include "gpipe/schedule/search/v_pattern.h"
#include "gpipe/schedule/search/workload.h"
#include "text/digits.h"

namespace gpipe {
namespace {

using internal::count_of;
using internal::give_slack;
using internal::MoreSlack;
using internal::Order;
using internal::Searched;
using internal::slack_of;
using internal::Timing;
using internal::Workload;
using internal::workload_of;

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument("search: " + what); }

struct Seed {
  std::string name;
  Order order;
};

// The orders with which a search begins: those that the generators of the placement's shape give,
// within a budget and until `stop` returns true.
class Seeds {
 public:
  Seeds(const SearchOptions& options, const Workload& workload)
      : options_(options), workload_(workload) {
    const int64_t p = options.placement.workers();
    const int64_t v = options.placement.stages() / p;
    const std::vector<int64_t>& where = options.placement.worker_of_stage();
    loop_ = where == Placement::loop(p, v).worker_of_stage();
    // grouped_orders() is used only if there are limits, because without limits the generators
    // already use the best groups.
    grouped_ = loop_ && v > 1 &&
               std::any_of(workload.limit.begin(), workload.limit.end(),
                           [](double limit) { return std::isfinite(limit); });
    v_shape_ = options.split && where == Placement::v_shape(p).worker_of_stage();
    if (loop_ && v == 1 && options.split) searching_ = {{"zb-h2", Searched::kZbH2}};
    if (!v_shape_) return;
    searching_ = {{"dualpipe-v", Searched::kDualPipeV}};
    // ZB-V, V-Half and V-Min each search within a fixed memory. Only one of them is used: the one
    // that uses the most memory and fits, because it gives the shortest orders.
    const double room =
        *std::min_element(workload.limit.begin(), workload.limit.end()) /
        std::max(*std::max_element(workload.held.begin(), workload.held.end()),
                 *std::max_element(workload.waiting.begin(), workload.waiting.end()));
    const auto pairs = static_cast<double>(p);
    searching_.push_back(room >= 2 * pairs   ? SearchingGenerator{"zb-v", Searched::kZbV}
                         : room >= pairs + 2 ? SearchingGenerator{"v-half", Searched::kVHalf}
                                             : SearchingGenerator{"v-min", Searched::kVMin});
  }

  // The most work of the generators that search.
  int64_t work() const {
    int64_t sum = grouped_ ? grouped_work() : 0;
    for (const SearchingGenerator& each : searching_) {
      sum += internal::searched_work(each.which, workload_.workers, workload_.micro_batches);
    }
    return sum;
  }

  // `most`: the budget of each generator that searches.
  void make(int64_t budget, int64_t most) {
    const int64_t p = workload_.workers;
    const int64_t m = workload_.micro_batches;
    const int64_t v = workload_.stages / p;
    const auto add = [&](const char* name, const Schedule& schedule) {
      seeds_.push_back({name, internal::to_order(schedule)});
      spent_ += int64_t{3} * workload_.stages * m;
    };
    if (loop_) {
      add(v == 1 ? "1f1b" : "interleaved", interleaved(p, v, m));
      v == 1 ? add("fill-drain", fill_drain(p, m))
             : add("looped-bfs", looped_breadth_first(p, v, m));
      if (options_.split) {
        add(v == 1 ? "zb-h1" : "zb-interleaved", zero_bubble_interleaved(p, v, m));
      }
    }
    if (grouped_) {
      Timing timing(workload_);
      for (Order& order :
           internal::grouped_orders(workload_, options_.split, kGrouped,
                                    std::min(budget / 8, grouped_work()), options_.stop, &timing)) {
        seeds_.push_back({"search", std::move(order)});
      }
      spent_ += timing.actions();
    }
    for (const SearchingGenerator& each : searching_) {
      // DualPipeV is made even if `stop` returns true, because without a search it is a table by
      // rules.
      if (each.which != Searched::kDualPipeV && stopped()) return;
      internal::Optimized found =
          internal::searched_order(each.which, p, m, mean_costs(), most, options_.stop);
      spent_ += found.actions;
      seeds_.push_back({each.name, std::move(found.order)});
    }
    if (!v_shape_) return;
    // The patterns may take little of the budget, because running them takes as much work again as
    // making them.
    const int64_t before = spent_;
    for (const auto& [up, down] : internal::all_steps()) {
      if (stopped() || spent_ > budget / 2 || spent_ - before > budget / 16) return;
      if (auto order = internal::v_pattern(p, m, up, down)) {
        seeds_.push_back({"search", std::move(*order)});
        spent_ += int64_t{3} * workload_.stages * m;
      }
    }
  }

  void add(Seed seed, int64_t spent) {
    seeds_.push_back(std::move(seed));
    spent_ += spent;
  }

  int64_t spent() const { return spent_; }
  const std::vector<Seed>& all() const { return seeds_; }

 private:
  struct SearchingGenerator {
    const char* name;
    Searched which;
  };

  bool stopped() const { return options_.stop && options_.stop(); }

  // The number of the best orders of grouped_orders() that are kept, and the work that it may take.
  // With few micro-batches the work is enough for all sizes of groups.
  static constexpr size_t kGrouped = 4;
  int64_t grouped_work() const {
    return int64_t{1000} * workload_.stages * workload_.micro_batches;
  }

  // The costs of an average stage, because generators take one cost for all stages.
  GeneratorCosts mean_costs() const {
    GeneratorCosts costs{{0, 0, 0, 0}, 0};
    const auto stages = static_cast<double>(workload_.stages);
    for (size_t s = 0; s < workload_.cost.size(); ++s) {
      costs.stage.forward += workload_.cost[s][0] / stages;
      costs.stage.backward += workload_.cost[s][1] / stages;
      costs.stage.input_gradient += workload_.cost[s][2] / stages;
      costs.stage.weight_gradient += workload_.cost[s][3] / stages;
      costs.transfer = std::max(costs.transfer, workload_.activation_takes[s]);
    }
    if (std::all_of(workload_.cost.begin(), workload_.cost.end(),
                    [&](const auto& c) { return c == workload_.cost[0]; })) {
      const auto& c = workload_.cost[0];  // taken as it is, because sums would be rounded
      costs.stage = {c[0], c[1], c[2], c[3]};
    }
    return costs;
  }

  const SearchOptions& options_;
  const Workload& workload_;
  bool loop_ = false;
  bool grouped_ = false;
  bool v_shape_ = false;
  std::vector<SearchingGenerator> searching_;
  std::vector<Seed> seeds_;
  int64_t spent_ = 0;
};

// The work at the end of a search, in simulated actions: joining backwards and computing the slack.
struct Finish {
  // The work of joined(), for each action.
  static constexpr int64_t kJoining = 100;
  // Joining and the slack may each take at most 1 / kPart of a budget that is given.
  static constexpr int64_t kPart = 4;

  Finish(const SearchOptions& options, const Workload& workload) {
    const int64_t most = int64_t{3} * workload.stages * workload.micro_batches;
    const auto links = static_cast<int64_t>(Timing(workload).links().size());
    joining = kJoining * most;
    // Each time that the slack is computed, there are about two runs for each link.
    slack = most * (1 + 2 * links) * (options.objective == Objective::kSlack ? 3 : 1);
    if (options.budget == 0) return;
    joins = joining <= options.budget / kPart;
    if (!joins) joining = 0;
    slack = std::min(slack, options.budget / kPart);
  }

  bool joins = true;
  int64_t joining = 0;
  int64_t slack = 0;
};

// The work that optimize() gets by default.
int64_t default_work(const Workload& workload) {
  const double cells = static_cast<double>(workload.workers) * workload.micro_batches;
  return static_cast<int64_t>(60e6 * std::max(1.0, std::pow(cells / 1024.0, 2.0 / 3.0)));
}

void check_budget(const SearchOptions& options, const Workload& workload) {
  const int64_t least = int64_t{3} * workload.stages * workload.micro_batches;
  if (options.budget > 0 && options.budget < least) {
    fail("budget is " + std::to_string(options.budget) + ", but one schedule of " +
         std::to_string(workload.stages) + " stages and " + std::to_string(workload.micro_batches) +
         " micro-batches has " + std::to_string(least) +
         " actions; give at least that, or 0 for the default");
  }
}

// The budget of a search. The default includes the work of its generators, so that the search is
// never worse than they are, and the work at its end.
int64_t budget_of(const SearchOptions& options, const Workload& workload, const Seeds& seeds,
                  const Finish& finish) {
  if (options.budget > 0) return options.budget;
  return default_work(workload) + seeds.work() + finish.joining + finish.slack;
}

// If a whole backward costs less than its halves, an order without splits may be the best, and a
// search that splits may miss it. So this function first runs a search without splits, and adds the
// order that it finds to `seeds`. With the default budget that search has as much work as it would
// have alone, so a search with splits is never worse. Returns the work to add to a default budget.
int64_t begin_with_wholes(SearchOptions options, const Workload& workload, Seeds* seeds) {
  const bool pays = std::any_of(workload.cost.begin(), workload.cost.end(),
                                [](const std::array<double, internal::kComputingKinds>& cost) {
                                  return cost[1] < (cost[2] + cost[3]) * (1.0 - 1e-9);
                                });
  if (!options.split || !pays) return 0;
  options.split = false;
  Seeds wholes(options, workload);
  const bool is_default = options.budget == 0;
  const int64_t budget = is_default ? default_work(workload) + wholes.work() : options.budget / 4;
  // If the budget is enough for a few runs of an order only, all of it is left to the search with
  // splits.
  if (budget < int64_t{100} * 3 * workload.stages * workload.micro_batches) return 0;
  wholes.make(budget, budget);
  internal::Optimizing optimizing;
  for (const Seed& seed : wholes.all()) optimizing.seeds.push_back(seed.order);
  optimizing.split = false;
  optimizing.stop = options.stop;
  optimizing.budget = std::max<int64_t>(budget - wholes.spent(), 0);
  std::optional<internal::Optimized> found = internal::optimize(workload, optimizing);
  const int64_t spent = wholes.spent() + (found ? found->actions : 0);
  if (found) seeds->add({"search", std::move(found->order)}, spent);
  return is_default ? spent : 0;
}

std::string needs(const Workload& workload) {
  std::string text;
  for (size_t worker = 0; worker < workload.stages_of.size(); ++worker) {
    double least = 0.0;
    for (const int32_t stage : workload.stages_of[worker]) {
      // No memory is added for weight gradients: backwards may be whole.
      least += workload.held[static_cast<size_t>(stage)];
    }
    if (least <= workload.limit[worker]) continue;
    text += "\n  - worker " + std::to_string(worker) + " may hold " +
            text::exact(workload.limit[worker]) + ", one micro-batch in each of its stages is " +
            text::exact(least);
  }
  return ":" + text + "\nGive it that, or more workers, or smaller micro-batches";
}

}  // namespace

SearchResult search(const SearchOptions& options) {
  const Workload workload = workload_of(options);
  internal::check_finite_total(workload);
  check_budget(options, workload);
  Seeds seeds(options, workload);
  const Finish finish(options, workload);
  int64_t budget = budget_of(options, workload, seeds, finish);
  // The generators must leave a part of a given budget to the search itself.
  seeds.make(budget, options.budget > 0 ? budget / 3 : budget);
  budget += begin_with_wholes(options, workload, &seeds);
  internal::Optimizing optimizing;
  for (const Seed& seed : seeds.all()) optimizing.seeds.push_back(seed.order);
  optimizing.split = options.split;
  optimizing.stop = options.stop;
  const bool slack = options.objective == Objective::kSlack;
  const int64_t for_finish = finish.joining + finish.slack;
  const int64_t left = std::max<int64_t>(budget - seeds.spent() - for_finish, 0);
  optimizing.budget = slack ? left / 2 : left;
  std::optional<internal::Optimized> found = internal::optimize(workload, optimizing);
  if (!found) fail("no schedule keeps the limits" + needs(workload));

  SearchResult result{
      internal::to_schedule(found->order, workload.stages, workload.micro_batches),
      found->seed < 0 ? "search" : seeds.all()[static_cast<size_t>(found->seed)].name,
      found->makespan,
      internal::lower_bound(workload),
      0.0,
      {},
      seeds.spent() + found->actions,
      found->stopped};
  Timing timing(workload);
  const double deadline = found->makespan * (1.0 + options.tolerance);
  const auto stopped = [&] {
    result.stopped = result.stopped || (options.stop && options.stop());
    return result.stopped;
  };
  // A computation of the slack ends when the work exceeds the budget by an eighth.
  const std::function<bool()> ends = [&] {
    return stopped() || result.actions + timing.actions() - budget > budget / 8;
  };
  if (slack && !timing.links().empty()) {
    MoreSlack more;
    more.deadline = deadline;
    more.budget = budget - for_finish - result.actions;
    more.round_budget = budget / 8;
    more.joins = options.split;
    more.stop = stopped;
    more.ends = ends;
    if (give_slack(workload, more, &timing, &found->order)) result.origin = "search";
    result.schedule = internal::to_schedule(found->order, workload.stages, workload.micro_batches);
    timing.run(found->order);
    result.makespan = timing.makespan();
  }
  Order best = internal::to_order(result.schedule);
  // Halves are joined here, because the search itself does not try to join any if a whole backward
  // takes as long as its halves.
  if (finish.joins && !stopped()) {
    const Schedule fewer_splits =
        joined(result.schedule, search_routes(options), simulate_options(options));
    Order joined_order = internal::to_order(fewer_splits);
    result.actions += Finish::kJoining * count_of(best);
    if (!slack || slack_of(&timing, joined_order, deadline, ends) >=
                      slack_of(&timing, best, deadline, ends)) {
      result.schedule = fewer_splits;
      best = std::move(joined_order);
    }
  }
  timing.run(best);
  result.makespan = timing.makespan();
  if (!stopped()) {
    // The slack is that for the shorter of two makespans, because the final order may be shorter
    // than the one that was found first.
    const double shortest = std::min(found->makespan, result.makespan);
    result.slack = slack_of(&timing, best, shortest * (1.0 + options.tolerance), ends);
  }
  result.peak_bytes = peak_bytes(result.schedule, options);
  result.actions += timing.actions();
  return result;
}

}  // namespace gpipe
