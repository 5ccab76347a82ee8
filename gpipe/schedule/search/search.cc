#include "gpipe/schedule/search/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/follows_at_once.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/search/join.h"
#include "gpipe/schedule/search/loop_pattern.h"
#include "gpipe/schedule/search/optimize.h"
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

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument("search: " + what); }

// Returns a value for each of `count` units. `given` has either one value for all, or one for each.
template <typename Value>
std::vector<Value> each(std::vector<Value> given, int64_t count, const char* what,
                        const char* unit) {
  if (given.size() == 1) given.assign(static_cast<size_t>(count), given.front());
  if (static_cast<int64_t>(given.size()) != count) {
    fail(std::string(what) + " has " + std::to_string(given.size()) + " values for " +
         std::to_string(count) + " " + unit + ": give 1 or " + std::to_string(count));
  }
  return given;
}

void check(double value, const char* what) {
  if (std::isfinite(value) && value >= 0.0) return;
  fail(std::string(what) + " must be finite and at least 0, got " + text::exact(value));
}

std::vector<double> transfers(const std::vector<double>& given, int64_t stages, const char* what) {
  const int64_t count = std::max<int64_t>(stages - 1, 1);
  std::vector<double> all =
      each(given.empty() ? std::vector<double>{0.0} : given, count, what, "boundaries");
  for (const double value : all) check(value, what);
  return all;
}

Workload workload_of(const SearchOptions& options) {
  if (options.objective != Objective::kMakespan && options.objective != Objective::kSlack) {
    fail("objective must be one of kMakespan and kSlack, got the number " +
         std::to_string(static_cast<int>(options.objective)));
  }
  const int64_t stages = options.placement.stages();
  const int64_t workers = options.placement.workers();
  if (options.micro_batches < 1) {
    fail("micro_batches must be at least 1, got " + std::to_string(options.micro_batches) +
         "; the least is 1");
  }
  if (stages > Schedule::kMostCells / options.micro_batches) {
    fail("at most 2^24 cells (stages x micro-batches), got " + std::to_string(stages) + " x " +
         std::to_string(options.micro_batches));
  }
  constexpr double kNone = std::numeric_limits<double>::infinity();
  Workload workload = Workload::uniform(options.placement, options.micro_batches, {}, 0.0, kNone);
  const std::vector<StageCost> costs = each(options.costs, stages, "costs", "stages");
  const std::vector<double> up =
      transfers(options.activation_transfer, stages, "activation_transfer");
  const std::vector<double> down =
      transfers(options.gradient_transfer, stages, "gradient_transfer");
  for (size_t s = 0; s < costs.size(); ++s) {
    workload.cost[s] = {costs[s].forward, costs[s].backward, costs[s].input_gradient,
                        costs[s].weight_gradient};
    for (const double cost : workload.cost[s]) check(cost, "costs");
    if (s + 1 == costs.size() || workload.worker_of[s] == workload.worker_of[s + 1]) continue;
    workload.activation_takes[s + 1] = up[s];
    workload.gradient_takes[s] = down[s];
  }
  for (const SearchSkip& skip : options.skips) {
    if (skip.from_stage < 0 || skip.to_stage <= skip.from_stage || skip.to_stage >= stages) {
      fail("a skip goes from stage " + std::to_string(skip.from_stage) + " to stage " +
           std::to_string(skip.to_stage) + "; it goes to a later one of the stages 0 to " +
           std::to_string(stages - 1));
    }
    check(skip.activation_transfer, "a skip's activation_transfer");
    check(skip.gradient_transfer, "a skip's gradient_transfer");
    const auto from = static_cast<int32_t>(skip.from_stage);
    const auto to = static_cast<int32_t>(skip.to_stage);
    // The value of a skip within one worker takes no time.
    if (options.placement.worker_of(from) == options.placement.worker_of(to)) continue;
    workload.add_skip(from, to, skip.activation_transfer, skip.gradient_transfer);
  }
  workload.held = each(options.activation_bytes, stages, "activation_bytes", "stages");
  workload.waiting = each(options.waiting_bytes, stages, "waiting_bytes", "stages");
  for (const double bytes : workload.held) check(bytes, "activation_bytes");
  for (const double bytes : workload.waiting) check(bytes, "waiting_bytes");
  double all = 0.0;
  for (size_t s = 0; s < workload.held.size(); ++s) {
    all += std::max(workload.held[s], workload.waiting[s]) *
           static_cast<double>(options.micro_batches);
  }
  if (!std::isfinite(all)) {
    fail(
        "activation_bytes and waiting_bytes of all stages and micro-batches add up to more than a "
        "double holds; give them, and memory_limit, in a larger unit");
  }
  if (!options.memory_limit.empty()) {
    workload.limit = each(options.memory_limit, workers, "memory_limit", "workers");
    for (const double bytes : workload.limit) {
      if (!(bytes >= 0.0)) fail("memory_limit must be at least 0, got " + text::exact(bytes));
    }
  }
  if (!(options.tolerance >= 0.0) || !std::isfinite(options.tolerance)) {
    fail("tolerance must be a finite number of at least 0, got " + text::exact(options.tolerance));
  }
  if (options.budget < 0) {
    fail("budget must be at least 0, got " + std::to_string(options.budget));
  }
  return workload;
}

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
    searching_.push_back(room >= 2 * pairs   ? Search{"zb-v", Searched::kZbV}
                         : room >= pairs + 2 ? Search{"v-half", Searched::kVHalf}
                                             : Search{"v-min", Searched::kVMin});
  }

  // The most work of the generators that search.
  int64_t work() const {
    int64_t sum = grouped_ ? grouped_work() : 0;
    for (const Search& each : searching_) {
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
    for (const Search& each : searching_) {
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
  struct Search {
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
  std::vector<Search> searching_;
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

// Checks that the options fit the schedule, and that it has every action of a step once.
ScheduleFacts check_matches(const char* who, const Schedule& schedule,
                            const SearchOptions& options) {
  schedule.check(options.placement);
  if (schedule.micro_batches() != options.micro_batches) {
    throw std::invalid_argument(std::string(who) + ": the schedule has " +
                                std::to_string(schedule.micro_batches()) +
                                " micro-batches, SearchOptions::micro_batches is " +
                                std::to_string(options.micro_batches) + "; give the schedule's");
  }
  internal::check_whole_step(schedule, std::string(who) + ": ");
  for (const std::vector<Action>& actions : schedule.table()) {
    const auto moves = [](const Action& action) { return !computes(action.kind); };
    const auto found = std::find_if(actions.begin(), actions.end(), moves);
    if (found == actions.end()) continue;
    throw std::invalid_argument(std::string(who) +
                                ": the schedule has offloads, which the search does not count: " +
                                found->to_text() + "; give the schedule without_offloads()");
  }
  return schedule.verify(Sends::kBuffered);
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

SimulateOptions simulate_options(const SearchOptions& options) {
  const Workload workload = workload_of(options);
  SimulateOptions result;
  result.action = stage_costs(each(options.costs, workload.stages, "costs", "stages"));
  result.transfer = [workload, routes = search_routes(options),
                     skips = options.skips](const Transfer& transfer) {
    for (const Action& action : {transfer.producer, transfer.consumer}) {
      if (action.stage >= 0 && action.stage < workload.stages) continue;
      throw std::out_of_range("simulate_options: there is no transfer from or to the stage of " +
                              action.to_text() + ", the options have " +
                              std::to_string(workload.stages) + " stages, counted from 0");
    }
    const auto from = static_cast<size_t>(transfer.producer.stage);
    const auto to = static_cast<size_t>(transfer.consumer.stage);
    // The caller's own routes may have skips that are not in the options. Transfers over such skips
    // take the time of the boundary if their stages are neighbors, and otherwise no time.
    const bool known = static_cast<int64_t>(transfer.route) < routes.size();
    if (const std::optional<size_t> skip = known ? routes.skip(transfer.route) : std::nullopt) {
      return to > from ? skips[*skip].activation_transfer : skips[*skip].gradient_transfer;
    }
    if (to == from + 1) return workload.activation_takes[to];
    if (from == to + 1) return workload.gradient_takes[to];
    return 0.0;
  };
  return result;
}

Routes search_routes(const SearchOptions& options) {
  (void)workload_of(options);  // throws if the options make no sense
  std::vector<Route> skips;
  for (const SearchSkip& skip : options.skips) {
    skips.push_back(
        {static_cast<int32_t>(skip.from_stage), static_cast<int32_t>(skip.to_stage), ""});
  }
  return Routes::create(options.placement.stages(), std::move(skips));
}

std::vector<double> peak_bytes(const Schedule& schedule, const SearchOptions& options) {
  const Workload workload = workload_of(options);
  check_matches("peak_bytes", schedule, options);
  std::vector<double> peaks;
  for (const auto& order : internal::to_order(schedule)) {
    peaks.push_back(internal::peak_memory(workload, order));
  }
  return peaks;
}

double link_slack(const Schedule& schedule, const SearchOptions& options, double deadline) {
  const Workload workload = workload_of(options);
  if (!check_matches("link_slack", schedule, options).ascending) {
    throw std::invalid_argument(
        "link_slack: the schedule is not ascending (ScheduleFacts); relabeled() may help");
  }
  if (std::isnan(deadline)) {
    throw std::invalid_argument("link_slack: the deadline is not a number; give a time");
  }
  Timing timing(workload);
  return slack_of(&timing, internal::to_order(schedule), deadline, options.stop);
}

}  // namespace gpipe
