#include "gpipe/schedule/generators.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/greedy.h"
#include "gpipe/schedule/optimize.h"
#include "gpipe/schedule/v_pattern.h"
#include "gpipe/schedule/workload.h"

namespace gpipe {
namespace {

using internal::Order;
using internal::to_schedule;
using internal::token;
using internal::truncated;
using internal::v_pattern;
using internal::WorkerOrder;
using internal::Workload;

constexpr auto kF = ActionKind::kForward;
constexpr auto kB = ActionKind::kBackward;
constexpr auto kI = ActionKind::kInputGradient;
constexpr auto kW = ActionKind::kWeightGradient;

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

// The sizes of the groups in which micro-batches go through a loop: at least `workers` each, if
// there are so many, as even as possible. A smaller group before a larger one would deadlock.
std::vector<int64_t> groups(int64_t workers, int64_t micro_batches) {
  const int64_t count = std::max<int64_t>(1, micro_batches / workers);
  std::vector<int64_t> sizes;
  for (int64_t k = 0; k < count; ++k) {
    sizes.push_back(micro_batches / count + (k < micro_batches % count ? 1 : 0));
  }
  return sizes;
}

// The local stages of a worker in the order in which a loop runs its forwards: per group, per
// stage, per micro-batch. Backwards are in the same order with the stages reversed.
std::vector<int32_t> loop_order(const std::vector<int64_t>& sizes, int64_t v) {
  std::vector<int32_t> order;
  for (const int64_t size : sizes) {
    for (int32_t local = 0; local < v; ++local) {
      order.insert(order.end(), static_cast<size_t>(size), local);
    }
  }
  return order;
}

// Interleaved schedules, whole and split. `warm_up` has the number of forwards of each worker
// before its first backward.
template <typename WarmUp>
Schedule loop(int64_t workers, int64_t v, int64_t micro_batches, const WarmUp& warm_up,
              bool split) {
  const std::vector<int64_t> sizes = groups(workers, micro_batches);
  const std::vector<int32_t> locals = loop_order(sizes, v);
  const auto all = static_cast<int64_t>(locals.size());
  Order order;
  for (int64_t worker = 0; worker < workers; ++worker) {
    WorkerOrder& tokens = order.emplace_back();
    const auto stage = [&](int64_t local) {
      return static_cast<int32_t>(local * workers + worker);
    };
    std::deque<int32_t> pending;
    int64_t forwards = 0;
    int64_t backwards = 0;
    const auto forward = [&] {
      tokens.push_back(token(kF, stage(locals[static_cast<size_t>(forwards++)])));
    };
    const auto weight = [&] {
      tokens.push_back(token(kW, pending.front()));
      pending.pop_front();
    };
    const auto backward = [&] {
      const int32_t of = stage(v - 1 - locals[static_cast<size_t>(backwards++)]);
      tokens.push_back(token(split ? kI : kB, of));
      if (!split) return;
      pending.push_back(of);
      if (backwards > worker) weight();
    };
    const int64_t first = std::min(all, warm_up(worker, sizes.front()));
    while (forwards < first) forward();
    while (forwards < all) {
      forward();
      backward();
    }
    while (backwards < all) backward();
    while (!pending.empty()) weight();
  }
  return to_schedule(order, workers * v, micro_batches);
}

Workload workload_of(const Placement& placement, int64_t micro_batches, const GeneratorCosts& costs,
                     double limit) {
  for (const double each : {costs.stage.forward, costs.stage.backward, costs.stage.input_gradient,
                            costs.stage.weight_gradient, costs.transfer}) {
    if (std::isfinite(each) && each >= 0.0) continue;
    throw std::invalid_argument("GeneratorCosts: costs must be finite and at least 0, got " +
                                std::to_string(each));
  }
  return Workload::uniform(placement, micro_batches, costs.stage, costs.transfer, limit);
}

// The work of a search: it grows with the pipeline, but less than what there is to find, so that
// large ones are made in seconds.
int64_t budget(int64_t workers) {
  return 6'000'000 + 700'000 * std::min<int64_t>(workers * workers, 256);
}

// Without a reason to join halves; that is the caller's to ask for (join.h).
GeneratorCosts only_split(GeneratorCosts costs) {
  costs.stage.backward = costs.stage.input_gradient + costs.stage.weight_gradient;
  return costs;
}

// The best order in a V that a search finds with so much memory, and with this part of the work.
std::optional<internal::Optimized> best_in_v(int64_t workers, int64_t micro_batches,
                                             const GeneratorCosts& costs, int64_t limit,
                                             std::vector<Order> seeds, double part = 1.0) {
  const Workload workload =
      workload_of(Placement::v_shape(workers), micro_batches, only_split(costs),
                  static_cast<double>(std::max<int64_t>(limit, 2)));
  internal::Optimizing optimizing;
  optimizing.seeds = std::move(seeds);
  optimizing.budget = static_cast<int64_t>(part * static_cast<double>(budget(workers)));
  return internal::optimize(workload, optimizing);
}

int64_t most_held(const Order& order) {
  int64_t most = 0;
  for (const WorkerOrder& tokens : order) {
    int64_t held = 0;
    for (const internal::Token each : tokens) {
      if (internal::kind_of(each) == kF) most = std::max(most, ++held);
      if (internal::kind_of(each) == kW) --held;
    }
  }
  return most;
}

// What a search makes of patterns with these steps. There always is an order: a worker has
// room for one micro-batch in each of its stages.
Schedule searched(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs,
                  int64_t limit, const std::vector<std::array<int64_t, 2>>& steps) {
  std::vector<Order> seeds;
  for (const auto& [up, down] : steps) {
    if (auto order = v_pattern(workers, micro_batches, up, down))
      seeds.push_back(std::move(*order));
  }
  // Where all actions take the same, most changes of an order change no time, and nothing says
  // where they lead. Then first with costs that are a little off.
  const StageCost& cost = costs.stage;
  double part = 1.0;
  if (costs.transfer == 0.0 && cost.forward == cost.input_gradient &&
      cost.forward == cost.weight_gradient && limit < 2 * workers) {
    GeneratorCosts off = costs;
    off.stage.weight_gradient *= 0.9;
    seeds = {best_in_v(workers, micro_batches, off, limit, seeds, 0.54)->order};
    part = 0.325;
  }
  return to_schedule(best_in_v(workers, micro_batches, costs, limit, std::move(seeds), part)->order,
                     2 * workers, micro_batches);
}

// DualPipeV's eight steps, for at least 2p micro-batches.
Order dualpipe_order(int64_t workers, int64_t micro_batches) {
  Order order;
  for (int64_t r = 0; r < workers; ++r) {
    WorkerOrder& tokens = order.emplace_back();
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
    // The second half of these is split; where it begins depends on the worker's parity.
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
  }
  return order;
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
  const Workload workload = workload_of(Placement::one_each(stages), micro_batches,
                                        only_split(costs), static_cast<double>(2 * stages - 1));
  // An input gradient if there is one, else a forward if there is room, else a weight gradient.
  internal::GreedyRule rule = internal::GreedyRule::of(workload);
  rule.most_live.assign(static_cast<size_t>(stages), static_cast<int32_t>(micro_batches));
  rule.gap.assign(static_cast<size_t>(stages), 0.0);
  internal::Optimizing optimizing;
  internal::Greedy(workload).run(rule, &optimizing.seeds.emplace_back());
  optimizing.budget = budget(stages);
  return to_schedule(internal::optimize(workload, optimizing)->order, stages, micro_batches);
}

Schedule zb_v(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs) {
  check("zb_v", workers, 2, micro_batches);
  return searched(workers, micro_batches, costs, 2 * workers, internal::all_steps());
}

Schedule v_half(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs) {
  check("v_half", workers, 2, micro_batches);
  return searched(workers, micro_batches, costs, workers + 2, {{2, 1}, {1, 1}});
}

Schedule v_min(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs) {
  check("v_min", workers, 2, micro_batches);
  // What the pattern holds: two thirds of the workers, rounded up, and one or two more.
  const std::optional<Order> least = v_pattern(workers, 4 * workers, 1, 1);
  return searched(workers, micro_batches, costs, most_held(*least), {{1, 1}});
}

Schedule dualpipe_v(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs) {
  check("dualpipe_v", workers, 2, micro_batches);
  if (micro_batches >= 2 * workers) {
    return to_schedule(dualpipe_order(workers, micro_batches), 2 * workers, micro_batches);
  }
  Order order = truncated(dualpipe_order(workers, 2 * workers), 2 * workers, micro_batches);
  return to_schedule(
      best_in_v(workers, micro_batches, costs, 2 * workers + 1, {std::move(order)})->order,
      2 * workers, micro_batches);
}

}  // namespace gpipe
