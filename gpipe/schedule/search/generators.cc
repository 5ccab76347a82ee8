#include "gpipe/schedule/search/generators.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/search/greedy.h"
#include "gpipe/schedule/search/loop_pattern.h"
#include "gpipe/schedule/search/optimize.h"
#include "gpipe/schedule/search/searched.h"
#include "gpipe/schedule/search/v_pattern.h"
#include "gpipe/schedule/search/workload.h"
#include "text/digits.h"

namespace gpipe {
namespace {

using internal::Order;
using internal::Searched;
using internal::to_schedule;
using internal::token;
using internal::v_pattern;
using internal::WorkerOrder;
using internal::Workload;

constexpr auto kF = ActionKind::kForward;
constexpr auto kB = ActionKind::kBackward;
constexpr auto kI = ActionKind::kInputGradient;
constexpr auto kW = ActionKind::kWeightGradient;

// A makespan or cost counts as less than another only if it is less by this share, so that rounding
// does not decide.
constexpr double kSame = 1e-9;

void check(const char* who, int64_t workers, int64_t v, int64_t micro_batches) {
  if (workers < 1 || v < 1 || micro_batches < 1) {
    throw std::invalid_argument(
        std::string(who) + ": workers, stages per worker and micro-batches must be at least 1, " +
        "got " + std::to_string(workers) + ", " + std::to_string(v) + " and " +
        std::to_string(micro_batches) + "; the least is 1 of each");
  }
  const int64_t most = Schedule::kMostCells;
  if (workers > most / v || workers * v > most / micro_batches) {
    throw std::invalid_argument(std::string(who) + ": at most 2^24 cells (stages x micro-batches)" +
                                ", got " + std::to_string(workers) + " workers x " +
                                std::to_string(v) + " stages x " + std::to_string(micro_batches) +
                                " micro-batches");
  }
}

// An interleaved schedule, whole or split. `warm_up` gives the number of forwards of each worker
// before its first backward. Micro-batches go through a loop in groups of at least `workers` each,
// if there are that many.
template <typename WarmUp>
Schedule loop(int64_t workers, int64_t v, int64_t micro_batches, const WarmUp& warm_up,
              bool split) {
  internal::LoopPattern pattern;
  pattern.workers = workers;
  pattern.v = v;
  pattern.groups =
      internal::even_groups(micro_batches, std::max<int64_t>(1, micro_batches / workers));
  pattern.split = split;
  Order order;
  for (int64_t worker = 0; worker < workers; ++worker) {
    order.push_back(internal::loop_order(pattern, worker, warm_up(worker, pattern.groups.front())));
  }
  return to_schedule(order, workers * v, micro_batches);
}

Workload workload_of(const Placement& placement, int64_t micro_batches, const GeneratorCosts& costs,
                     double limit) {
  internal::check_costs(costs);
  return Workload::uniform(placement, micro_batches, costs.stage, costs.transfer, limit);
}

// The costs, changed such that a whole backward never costs more than its halves. Where it costs
// less, the search joins halves; otherwise all backwards are split, and callers may join them
// (join.h).
GeneratorCosts with_cheap_whole(GeneratorCosts costs) {
  const double halves = costs.stage.input_gradient + costs.stage.weight_gradient;
  if (costs.stage.backward >= halves * (1.0 - kSame)) costs.stage.backward = halves;
  return costs;
}

// The work that a generator's search may take.
struct Effort {
  int64_t budget;
  const std::function<bool()>& stop;

  internal::Optimizing optimizing(std::vector<Order> seeds, double part = 1.0) const {
    internal::Optimizing result;
    result.seeds = std::move(seeds);
    result.budget = static_cast<int64_t>(part * static_cast<double>(budget));
    result.stop = stop;
    return result;
  }
};

// A V whose workers may hold `limit` stage x micro-batch pairs each, at least one in each stage.
Workload workload_in_v(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs,
                       int64_t limit) {
  return workload_of(Placement::v_shape(workers), micro_batches, costs,
                     static_cast<double>(std::max<int64_t>(limit, 2)));
}

// The best order in a V that a search finds if a worker may hold `limit` stage x micro-batch pairs,
// with `part` of the work. The search always finds an order, because a worker has room for one
// micro-batch in each of its stages.
internal::Optimized best_in_v(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs,
                              int64_t limit, std::vector<Order> seeds, const Effort& effort,
                              double part = 1.0) {
  const Workload workload = workload_in_v(workers, micro_batches, costs, limit);
  return *internal::optimize(workload, effort.optimizing(std::move(seeds), part));
}

// The work of one search. It grows with the pipeline, but more slowly than the number of possible
// orders, so that large schedules are made in seconds.
int64_t work_of_search(int64_t workers) {
  return 6'000'000 + 700'000 * std::min<int64_t>(workers * workers, 256);
}

// Whether the schedule's generator searches once more, beginning with the patterns of all steps
// (or_of_all_patterns). V-Min and DualPipeV do, because a longer search was several percent better
// than the first one. ZB-V does not, because its first search already has all patterns.
bool searches_twice(Searched which) {
  return which == Searched::kVMin || which == Searched::kDualPipeV;
}

using Steps = std::vector<std::array<int64_t, 2>>;

std::vector<Order> patterns(int64_t workers, int64_t micro_batches, const Steps& steps,
                            const Effort& effort) {
  std::vector<Order> orders;
  for (const auto& [up, down] : steps) {
    if (!orders.empty() && effort.stop && effort.stop()) break;
    if (auto order = v_pattern(workers, micro_batches, up, down))
      orders.push_back(std::move(*order));
  }
  return orders;
}

// Returns `best`, or the result of another search if that result is shorter. The other search
// begins with the patterns of all steps, and may take the work that is left. If a pattern holds too
// much, the search keeps only its order of forwards and input gradients, and places the weight
// gradients anew, which often holds less.
internal::Optimized or_of_all_patterns(internal::Optimized best, int64_t workers,
                                       int64_t micro_batches, const GeneratorCosts& costs,
                                       int64_t limit, const Effort& effort) {
  const int64_t work = work_of_search(workers);
  const Effort rest{std::min(effort.budget - best.actions, work), effort.stop};
  const Workload workload = workload_in_v(workers, micro_batches, costs, limit);
  const double least = internal::lower_bound(workload) * (1.0 + kSame);
  if (best.stopped || rest.budget < work / 2 || best.makespan <= least) return best;
  internal::Optimized other =
      best_in_v(workers, micro_batches, costs, limit,
                patterns(workers, micro_batches, internal::all_steps(), rest), rest);
  const int64_t actions = best.actions + other.actions;
  if (other.makespan < best.makespan * (1.0 - kSame)) best = std::move(other);
  best.actions = actions;
  return best;
}

// The best order that a search finds from patterns with these steps. With `again`, a second search
// looks for a better order from the patterns of all steps.
internal::Optimized best_of_patterns(int64_t workers, int64_t micro_batches, GeneratorCosts costs,
                                     int64_t limit, const Steps& steps, bool again,
                                     const Effort& all) {
  const Effort effort{std::min(all.budget, work_of_search(workers)), all.stop};
  costs = with_cheap_whole(costs);
  std::vector<Order> seeds = patterns(workers, micro_batches, steps, effort);
  const StageCost& cost = costs.stage;
  const bool even = costs.transfer == 0.0 && cost.forward == cost.input_gradient &&
                    cost.forward == cost.weight_gradient;
  const bool whole_costs_less =
      cost.backward < (cost.input_gradient + cost.weight_gradient) * (1.0 - kSame);
  const bool is_memory_short = limit < 2 * workers;
  double part = 1.0;
  int64_t actions = 0;
  if (is_memory_short && even) {
    // If all actions take the same time, most changes of an order change no time, so they do not
    // show a way to a better order. So the search first runs with slightly different costs.
    GeneratorCosts off = costs;
    off.stage.weight_gradient *= 0.9;
    internal::Optimized first =
        best_in_v(workers, micro_batches, with_cheap_whole(off), limit, seeds, effort, 0.54);
    actions = first.actions;
    seeds = {std::move(first.order)};
    part = 0.325;
  }
  if (is_memory_short && whole_costs_less) {
    // Changes of a split order seldom lead to one with whole backwards. So the search also begins
    // with the best order that has no others.
    internal::Optimizing whole = effort.optimizing({}, 0.3 * part);
    whole.split = false;
    internal::Optimized without_splits =
        *internal::optimize(workload_in_v(workers, micro_batches, costs, limit), whole);
    actions += without_splits.actions;
    seeds.push_back(std::move(without_splits.order));
    part = std::min(part, 0.7);
  }
  internal::Optimized best =
      best_in_v(workers, micro_batches, costs, limit, std::move(seeds), effort, part);
  best.actions += actions;
  // With even costs there is no second search, because the patterns with these steps are made for
  // even costs.
  if (!again || even) return best;
  return or_of_all_patterns(std::move(best), workers, micro_batches, costs, limit, all);
}

// The order of worker r that DualPipeV's published eight steps give, for at least 2p micro-batches.
WorkerOrder dualpipe_order(int64_t workers, int64_t micro_batches, int64_t r) {
  WorkerOrder tokens;
  const int32_t stages[] = {static_cast<int32_t>(r), static_cast<int32_t>(2 * workers - 1 - r)};
  std::deque<int32_t> pending;
  const auto forward = [&](int chunk) { tokens.push_back(token(kF, stages[chunk])); };
  const auto backward = [&](int chunk, bool split = false) {
    tokens.push_back(token(split ? kI : kB, stages[chunk]));
    if (split) pending.push_back(stages[chunk]);
  };
  const auto weight = [&] {
    tokens.push_back(token(kW, pending.front()));
    pending.pop_front();
  };
  for (int64_t k = 0; k < 2 * (workers - r - 1); ++k) forward(0);
  for (int64_t k = 0; k < r + 1; ++k) {
    forward(0);
    forward(1);
  }
  for (int64_t k = 0; k < workers - r - 1; ++k) {
    backward(1, true);
    weight();
    forward(1);
  }
  for (int64_t k = 0; k < micro_batches - 2 * workers + r + 1; ++k) {
    forward(0);
    backward(1);
    forward(1);
    backward(0);
  }
  for (int64_t k = 0; k < workers - r - 1; ++k) {
    backward(1);
    forward(1);
    backward(0);
  }
  // The second half of these backwards is split. Where that half begins depends on whether the
  // worker's number is even or odd.
  bool split = false;
  for (int64_t k = 0; k < r + 1; ++k) {
    if (k == (r + 1) / 2 && r % 2 == 1) split = true;
    backward(1, split);
    if (k == (r + 1) / 2 && r % 2 == 0) split = true;
    backward(0, split);
  }
  for (int64_t k = 0; k < workers - r - 1; ++k) {
    weight();
    backward(0, true);
  }
  for (int64_t k = 0; k < r + 1; ++k) weight();
  return tokens;
}

// The order for any number of micro-batches: fewer than 2p are the first of 2p. A worker's order is
// made and cut before the next one's, because for many workers all of 2p take gigabytes.
Order dualpipe_order(int64_t workers, int64_t micro_batches) {
  Order order;
  for (int64_t r = 0; r < workers; ++r) {
    WorkerOrder tokens = dualpipe_order(workers, std::max(micro_batches, 2 * workers), r);
    if (micro_batches < 2 * workers) {
      tokens =
          std::move(internal::truncated({std::move(tokens)}, 2 * workers, micro_batches).front());
    }
    order.push_back(std::move(tokens));
  }
  return order;
}

Schedule searched_schedule(Searched which, int64_t workers, int64_t v, int64_t micro_batches,
                           const GeneratorCosts& costs) {
  // Costs are checked before the lookup, because a cost that is not a number compares as equal to
  // any other cost.
  internal::check_costs(costs);
  // A training asks for the same schedule in every step, so the latest schedules are kept.
  constexpr size_t kKept = 64;
  using Key = std::tuple<Searched, int64_t, int64_t, std::array<double, 5>>;
  const StageCost& stage = costs.stage;
  const Key key = {
      which,
      workers,
      micro_batches,
      {stage.forward, stage.backward, stage.input_gradient, stage.weight_gradient, costs.transfer}};
  static std::mutex mutex;
  // The map is never destroyed, because threads may outlive static objects.
  static auto* const kept = new std::map<Key, Schedule>;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto known = kept->find(key); known != kept->end()) return known->second;
  }
  const internal::Optimized found = internal::searched_order(
      which, workers, micro_batches, costs, internal::searched_work(which, workers, micro_batches));
  Schedule schedule = to_schedule(found.order, workers * v, micro_batches);
  const std::lock_guard<std::mutex> lock(mutex);
  if (kept->size() >= kKept) kept->clear();
  kept->emplace(key, schedule);
  return schedule;
}

}  // namespace

Schedule fill_drain(int64_t stages, int64_t micro_batches) {
  check("fill_drain", stages, 1, micro_batches);
  Order order;
  for (int32_t stage = 0; stage < stages; ++stage) {
    WorkerOrder& tokens = order.emplace_back(static_cast<size_t>(micro_batches), token(kF, stage));
    tokens.insert(tokens.end(), static_cast<size_t>(micro_batches), token(kB, stage));
  }
  return to_schedule(order, stages, micro_batches);
}

Schedule interleaved(int64_t workers, int64_t v, int64_t micro_batches) {
  check("interleaved", workers, v, micro_batches);
  if (v == 1) return Schedule::one_f_one_b(workers, micro_batches);
  return loop(
      workers, v, micro_batches,
      [&](int64_t worker, int64_t group) { return 2 * (workers - 1 - worker) + (v - 1) * group; },
      /*split=*/false);
}

Schedule looped_breadth_first(int64_t workers, int64_t v, int64_t micro_batches) {
  check("looped_breadth_first", workers, v, micro_batches);
  Order order;
  for (int64_t worker = 0; worker < workers; ++worker) {
    WorkerOrder& tokens = order.emplace_back();
    const auto all = [&](ActionKind kind, int64_t local) {
      tokens.insert(tokens.end(), static_cast<size_t>(micro_batches),
                    token(kind, static_cast<int32_t>(local * workers + worker)));
    };
    for (int64_t local = 0; local < v; ++local) all(kF, local);
    for (int64_t local = v; local-- > 0;) all(kB, local);
  }
  return to_schedule(order, workers * v, micro_batches);
}

Schedule zero_bubble_interleaved(int64_t workers, int64_t v, int64_t micro_batches) {
  check("zero_bubble_interleaved", workers, v, micro_batches);
  return loop(
      workers, v, micro_batches,
      [&](int64_t worker, int64_t group) { return workers - 1 - worker + (v - 1) * group; },
      /*split=*/true);
}

Schedule zb_h1(int64_t stages, int64_t micro_batches) {
  check("zb_h1", stages, 1, micro_batches);
  return zero_bubble_interleaved(stages, 1, micro_batches);
}

Schedule zb_h2(int64_t stages, int64_t micro_batches, const GeneratorCosts& costs) {
  check("zb_h2", stages, 1, micro_batches);
  return searched_schedule(Searched::kZbH2, stages, 1, micro_batches, costs);
}

Schedule zb_v(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs) {
  check("zb_v", workers, 2, micro_batches);
  return searched_schedule(Searched::kZbV, workers, 2, micro_batches, costs);
}

Schedule v_half(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs) {
  check("v_half", workers, 2, micro_batches);
  return searched_schedule(Searched::kVHalf, workers, 2, micro_batches, costs);
}

Schedule v_min(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs) {
  check("v_min", workers, 2, micro_batches);
  return searched_schedule(Searched::kVMin, workers, 2, micro_batches, costs);
}

Schedule dualpipe_v(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs) {
  check("dualpipe_v", workers, 2, micro_batches);
  return searched_schedule(Searched::kDualPipeV, workers, 2, micro_batches, costs);
}

namespace internal {

void check_costs(const GeneratorCosts& costs) {
  const auto check = [](const char* name, double cost) {
    if (std::isfinite(cost) && cost >= 0.0) return;
    throw std::invalid_argument("GeneratorCosts: " + std::string(name) +
                                " must be finite and at least 0, got " + text::exact(cost));
  };
  check("stage.forward", costs.stage.forward);
  check("stage.backward", costs.stage.backward);
  check("stage.input_gradient", costs.stage.input_gradient);
  check("stage.weight_gradient", costs.stage.weight_gradient);
  check("transfer", costs.transfer);
}

int64_t searched_work(Searched which, int64_t workers, int64_t micro_batches) {
  if (which == Searched::kDualPipeV && micro_batches >= 2 * workers) return 0;
  return (searches_twice(which) ? 2 : 1) * work_of_search(workers);
}

Optimized searched_order(Searched which, int64_t workers, int64_t micro_batches,
                         const GeneratorCosts& costs, int64_t budget,
                         const std::function<bool()>& stop) {
  const Effort effort{std::min(budget, searched_work(which, workers, micro_batches)), stop};
  const auto best = [&](int64_t limit, const Steps& steps) {
    return best_of_patterns(workers, micro_batches, costs, limit, steps, searches_twice(which),
                            effort);
  };
  switch (which) {
    case Searched::kZbH2: {
      const Workload workload =
          workload_of(Placement::one_each(workers), micro_batches, with_cheap_whole(costs),
                      static_cast<double>(2 * workers - 1));
      // The rule of a worker: an input gradient if one can run, otherwise a forward if there is
      // room for it, otherwise a weight gradient.
      GreedyRule rule = GreedyRule::of(workload);
      rule.most_live.assign(static_cast<size_t>(workers), static_cast<int32_t>(micro_batches));
      rule.gap.assign(static_cast<size_t>(workers), 0.0);
      std::vector<Order> seeds(1);
      if (!Greedy(workload).run(rule, &seeds.front(), stop)) seeds.clear();
      return *optimize(workload, effort.optimizing(std::move(seeds)));
    }
    case Searched::kZbV:
      return best(2 * workers, all_steps());
    case Searched::kVHalf:
      return best(workers + 2, {{2, 1}, {1, 1}});
    case Searched::kVMin:
      return best(least_held(workers), {{1, 1}});
    case Searched::kDualPipeV:
      break;
  }
  Order order = dualpipe_order(workers, micro_batches);
  if (micro_batches >= 2 * workers) {
    Optimized result;
    result.order = std::move(order);
    return result;
  }
  // Most backwards of a DualPipeV order are whole, so the cost of a whole backward counts, and not
  // that of its halves.
  const Effort first{std::min(effort.budget, work_of_search(workers)), stop};
  return or_of_all_patterns(
      best_in_v(workers, micro_batches, costs, 2 * workers + 1, {std::move(order)}, first), workers,
      micro_batches, costs, 2 * workers + 1, effort);
}

}  // namespace internal
}  // namespace gpipe
