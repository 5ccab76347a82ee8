#include "gpipe/schedule/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/anneal.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/join.h"
#include "gpipe/schedule/optimize.h"
#include "gpipe/schedule/v_pattern.h"
#include "gpipe/schedule/workload.h"

namespace gpipe {
namespace {

using internal::Order;
using internal::Timing;
using internal::Workload;

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument("search: " + what); }

// One value for each of `count`, of which one or all are given.
template <typename Value>
std::vector<Value> each(std::vector<Value> given, int64_t count, const char* what, const char* of) {
  if (given.size() == 1) given.assign(static_cast<size_t>(count), given.front());
  if (static_cast<int64_t>(given.size()) != count) {
    fail(std::string(what) + " has " + std::to_string(given.size()) + " values for " +
         std::to_string(count) + " " + of + ": give 1 or " + std::to_string(count));
  }
  return given;
}

void check(double value, const char* what) {
  if (std::isfinite(value) && value >= 0.0) return;
  fail(std::string(what) + " must be finite and at least 0, got " + std::to_string(value));
}

std::vector<double> transfers(const std::vector<double>& given, int64_t stages, const char* what) {
  const int64_t count = std::max<int64_t>(stages - 1, 1);
  std::vector<double> all =
      each(given.empty() ? std::vector<double>{0.0} : given, count, what, "boundaries");
  for (const double value : all) check(value, what);
  return all;
}

Workload workload_of(const SearchOptions& options) {
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
  workload.held = each(options.activation_bytes, stages, "activation_bytes", "stages");
  workload.waiting = each(options.waiting_bytes, stages, "waiting_bytes", "stages");
  for (const double bytes : workload.held) check(bytes, "activation_bytes");
  for (const double bytes : workload.waiting) check(bytes, "waiting_bytes");
  if (!options.memory_limit.empty()) {
    workload.limit = each(options.memory_limit, workers, "memory_limit", "workers");
    for (const double bytes : workload.limit) {
      if (!(bytes >= 0.0)) fail("memory_limit must be at least 0, got " + std::to_string(bytes));
    }
  }
  if (!(options.tolerance >= 0.0) || !std::isfinite(options.tolerance)) {
    fail("tolerance must be a finite number of at least 0, got " +
         std::to_string(options.tolerance));
  }
  if (options.budget < 0) {
    fail("budget must be at least 0, got " + std::to_string(options.budget));
  }
  return workload;
}

int64_t budget_of(const SearchOptions& options, const Workload& workload) {
  if (options.budget > 0) return options.budget;
  const double cells = static_cast<double>(workload.workers) * workload.micro_batches;
  return static_cast<int64_t>(60e6 * std::max(1.0, std::pow(cells / 1024.0, 2.0 / 3.0)));
}

struct Seed {
  std::string name;
  Order order;
};

// What the generators of this shape give.
std::vector<Seed> seeds_of(const SearchOptions& options, const Workload& workload) {
  const int64_t p = options.placement.workers();
  const int64_t m = options.micro_batches;
  const int64_t v = options.placement.stages() / p;
  GeneratorCosts costs{{0, 0, 0, 0}, 0};
  const auto stages = static_cast<double>(workload.stages);
  for (size_t s = 0; s < workload.cost.size(); ++s) {
    costs.stage.forward += workload.cost[s][0] / stages;
    costs.stage.backward += workload.cost[s][1] / stages;
    costs.stage.input_gradient += workload.cost[s][2] / stages;
    costs.stage.weight_gradient += workload.cost[s][3] / stages;
    costs.transfer = std::max(costs.transfer, workload.activation_takes[s]);
  }
  if (workload.stages > 1 && std::all_of(workload.cost.begin(), workload.cost.end(),
                                         [&](const auto& c) { return c == workload.cost[0]; })) {
    const auto& c = workload.cost[0];  // not rounded by the sums
    costs.stage = {c[0], c[1], c[2], c[3]};
  }
  std::vector<Seed> seeds;
  const auto add = [&](const char* name, const Schedule& schedule) {
    if (!options.split && splits(schedule) > 0) return;
    seeds.push_back({name, internal::to_order(schedule)});
  };
  const std::vector<int64_t>& where = options.placement.worker_of_stage();
  if (where == Placement::loop(p, v).worker_of_stage()) {
    if (v == 1) {
      add("1f1b", Schedule::one_f_one_b(p, m));
      add("fill-drain", fill_drain(p, m));
    } else {
      add("interleaved", interleaved(p, v, m));
      add("looped-bfs", looped_breadth_first(p, v, m));
    }
    if (options.split) {
      add(v == 1 ? "zb-h1" : "zb-interleaved", zero_bubble_interleaved(p, v, m));
      if (v == 1) add("zb-h2", zb_h2(p, m, costs));
    }
  }
  if (where == Placement::v_shape(p).worker_of_stage() && options.split) {
    add("dualpipe-v", dualpipe_v(p, m, costs));
    // The others are searches within their memory: the largest that fits is the fastest.
    const auto add_if_it_fits = [&](const char* name, const Schedule& schedule) {
      const Order order = internal::to_order(schedule);
      for (size_t worker = 0; worker < order.size(); ++worker) {
        if (!internal::keeps_limits(workload, static_cast<int32_t>(worker), order[worker])) {
          return false;
        }
      }
      seeds.push_back({name, order});
      return true;
    };
    const double room =
        *std::min_element(workload.limit.begin(), workload.limit.end()) /
        std::max(*std::max_element(workload.held.begin(), workload.held.end()),
                 *std::max_element(workload.waiting.begin(), workload.waiting.end()));
    const auto pairs = static_cast<double>(p);
    if (!(room >= 2 * pairs && add_if_it_fits("zb-v", zb_v(p, m, costs))) &&
        !(room >= pairs + 2 && add_if_it_fits("v-half", v_half(p, m, costs)))) {
      add_if_it_fits("v-min", v_min(p, m, costs));
    }
    for (const auto& [up, down] : internal::all_steps()) {
      if (auto order = internal::v_pattern(p, m, up, down)) {
        seeds.push_back({"search", std::move(*order)});
      }
    }
  }
  return seeds;
}

// Whether the order ends by the deadline whichever link is slower. `worst` is the link to begin
// with, and becomes the one that fails.
bool bears(Timing* timing, const Order& order, double extra, double deadline, size_t* worst) {
  const size_t links = timing->links().size();
  for (size_t k = 0; k < links; ++k) {
    const size_t link = (*worst + k) % links;
    if (timing->run(order, static_cast<int32_t>(link), extra) && timing->makespan() <= deadline) {
      continue;
    }
    *worst = link;
    return false;
  }
  return true;
}

double slack_of(Timing* timing, const Order& order, double deadline, double unit) {
  if (timing->links().empty()) return std::numeric_limits<double>::infinity();
  size_t worst = 0;
  deadline *= 1.0 + 1e-12;
  if (!std::isfinite(deadline)) return std::numeric_limits<double>::infinity();
  if (!bears(timing, order, 0.0, deadline, &worst)) return 0.0;
  double low = 0.0;
  double high = unit;
  while (bears(timing, order, high, deadline, &worst)) {
    low = high;
    high *= 2.0;
    if (high > deadline) break;
  }
  for (int step = 0; step < 30; ++step) {
    const double middle = 0.5 * (low + high);
    (bears(timing, order, middle, deadline, &worst) ? low : high) = middle;
  }
  return low;
}

std::string needs(const Workload& workload) {
  std::string text;
  for (size_t worker = 0; worker < workload.stages_of.size(); ++worker) {
    double least = 0.0;
    for (const int32_t stage : workload.stages_of[worker]) {
      least += std::max(workload.held[static_cast<size_t>(stage)],
                        workload.waiting[static_cast<size_t>(stage)]);
    }
    if (least <= workload.limit[worker]) continue;
    text += "\n  - worker " + std::to_string(worker) + " may hold " +
            std::to_string(workload.limit[worker]) + ", one micro-batch in each of its stages is " +
            std::to_string(least);
  }
  return text.empty() ? " (one micro-batch in each stage would fit)"
                      : ":" + text + "\nGive it that, or more workers, or smaller micro-batches";
}

}  // namespace

SearchResult search(const SearchOptions& options) {
  const Workload workload = workload_of(options);
  const int64_t budget = budget_of(options, workload);
  const std::vector<Seed> seeds = seeds_of(options, workload);
  internal::Optimizing optimizing;
  for (const Seed& seed : seeds) optimizing.seeds.push_back(seed.order);
  optimizing.split = options.split;
  optimizing.stop = options.stop;
  const bool slack = options.objective == Objective::kSlack;
  optimizing.budget = slack ? budget / 2 : budget;
  std::optional<internal::Optimized> found = internal::optimize(workload, optimizing);
  if (!found) fail("no schedule keeps the limits" + needs(workload));

  SearchResult result{internal::to_schedule(found->order, workload.stages, workload.micro_batches),
                      found->seed < 0 ? "search" : seeds[static_cast<size_t>(found->seed)].name,
                      found->makespan,
                      internal::lower_bound(workload),
                      0.0,
                      {},
                      found->actions,
                      found->stopped};
  Timing timing(workload);
  const double unit = workload.mean_cost();
  const double deadline = found->makespan * (1.0 + options.tolerance);
  if (slack && !timing.links().empty()) {
    // A little more slack than there is, again and again.
    Order order = found->order;
    double reached = slack_of(&timing, order, deadline, unit);
    uint64_t seed = 0;
    while (result.actions + timing.actions() < budget && !result.stopped) {
      internal::Annealing annealing;
      annealing.seed = ++seed;
      annealing.budget = std::min(budget / 8, budget - result.actions - timing.actions());
      annealing.stop = options.stop;
      annealing.bound = deadline;
      annealing.hot = 0.1;
      annealing.joins = options.split;
      const double extra = reached + 0.1 * unit;
      annealing.objective = [&](Timing* timed, const Order& tried) {
        double most = timed->makespan();
        for (size_t link = 0; link < timed->links().size(); ++link) {
          timed->run(tried, static_cast<int32_t>(link), extra);
          most = std::max(most, timed->makespan());
        }
        return most;
      };
      Order tried = order;
      anneal(workload, annealing, &timing, &tried);
      result.stopped = options.stop && options.stop();
      const double more = slack_of(&timing, tried, deadline, unit);
      if (more <= reached) continue;
      reached = more;
      order = std::move(tried);
      result.origin = "search";
    }
    result.schedule = internal::to_schedule(order, workload.stages, workload.micro_batches);
    timing.run(order);
    result.makespan = timing.makespan();
  }
  // Where whole backwards take as long as their halves, the search has not looked for them.
  const SimulateOptions costs = simulate_options(options);
  const Schedule fewer_splits = joined(result.schedule, costs);
  const Order joined_order = internal::to_order(fewer_splits);
  const double old_slack = slack_of(&timing, internal::to_order(result.schedule), deadline, unit);
  result.slack = slack_of(&timing, joined_order, deadline, unit);
  if (!slack || result.slack >= old_slack) {
    result.schedule = fewer_splits;
  } else {
    result.slack = old_slack;
  }
  result.makespan = simulate(result.schedule, costs).makespan;
  result.peak_bytes = peak_bytes(result.schedule, options);
  result.actions += timing.actions();
  return result;
}

SimulateOptions simulate_options(const SearchOptions& options) {
  const Workload workload = workload_of(options);
  SimulateOptions result;
  result.action = [cost = workload.cost](const Action& action) {
    return cost[static_cast<size_t>(action.stage)][static_cast<size_t>(action.kind)];
  };
  result.transfer = [workload](const Transfer& transfer) {
    // A skip is not costed here; a search knows the chain only.
    const auto from = static_cast<size_t>(transfer.producer.stage);
    const auto to = static_cast<size_t>(transfer.consumer.stage);
    if (to == from + 1) return workload.activation_takes[to];
    if (from == to + 1) return workload.gradient_takes[to];
    return 0.0;
  };
  return result;
}

std::vector<double> peak_bytes(const Schedule& schedule, const SearchOptions& options) {
  schedule.check(options.placement);
  const Workload workload = workload_of(options);
  std::vector<double> peaks;
  for (const auto& order : internal::to_order(schedule)) {
    peaks.push_back(internal::peak_memory(workload, order));
  }
  return peaks;
}

double link_slack(const Schedule& schedule, const SearchOptions& options, double deadline) {
  schedule.check(options.placement);
  if (!schedule.verify(Sends::kBuffered).ascending) {
    throw std::invalid_argument(
        "link_slack: the schedule is not ascending (ScheduleFacts); relabelled() may help");
  }
  const Workload workload = workload_of(options);
  Timing timing(workload);
  return slack_of(&timing, internal::to_order(schedule), deadline, workload.mean_cost());
}

}  // namespace gpipe
