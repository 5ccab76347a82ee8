#include "gpipe/schedule/search/loop_pattern.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "gpipe/schedule/search/anneal.h"
#include "gpipe/schedule/search/greedy.h"

namespace gpipe::internal {
namespace {

constexpr auto kF = ActionKind::kForward;
constexpr auto kB = ActionKind::kBackward;
constexpr auto kI = ActionKind::kInputGradient;
constexpr auto kW = ActionKind::kWeightGradient;

}  // namespace

std::vector<int64_t> even_groups(int64_t micro_batches, int64_t count) {
  std::vector<int64_t> sizes;
  for (int64_t k = 0; k < count; ++k) {
    sizes.push_back(micro_batches / count + (k < micro_batches % count ? 1 : 0));
  }
  return sizes;
}

WorkerOrder loop_order(const LoopPattern& pattern, int64_t worker, int64_t warm_up) {
  // For each forward of the worker, in their order: its stage, as an index among the worker's
  // stages.
  std::vector<int32_t> locals;
  for (const int64_t size : pattern.groups) {
    for (int32_t local = 0; local < pattern.v; ++local) {
      locals.insert(locals.end(), static_cast<size_t>(size), local);
    }
  }
  const auto all = static_cast<int64_t>(locals.size());
  const auto stage = [&](int64_t local) {
    return static_cast<int32_t>(local * pattern.workers + worker);
  };
  WorkerOrder tokens;
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
    const int32_t backward_stage = stage(pattern.v - 1 - locals[static_cast<size_t>(backwards++)]);
    tokens.push_back(token(pattern.split ? kI : kB, backward_stage));
    if (!pattern.split) return;
    pending.push_back(backward_stage);
    if (backwards > worker) weight();
  };
  const int64_t first = std::min(all, warm_up);
  for (int64_t k = 0; k < first; ++k) forward();
  for (int64_t k = first; k < all; ++k) {
    forward();
    backward();
  }
  for (int64_t k = all - first; k < all; ++k) backward();
  while (!pending.empty()) weight();
  return tokens;
}

std::vector<Order> grouped_orders(const Workload& workload, bool split, size_t count, int64_t most,
                                  const std::function<bool()>& stop, Timing* timing) {
  const int64_t p = workload.workers;
  const int64_t m = workload.micro_batches;
  LoopPattern pattern;
  pattern.workers = p;
  pattern.v = workload.stages / p;
  // Only orders that are shorter than that of greedy workers are kept, because others are not a
  // good start.
  GreedyRule rule = GreedyRule::of(workload);
  if (!split) rule.whole.assign(static_cast<size_t>(workload.stages), true);
  Greedy greedy(workload);
  Order by_rule;
  const bool runs = greedy.run(rule, &by_rule, stop);
  const double longest = runs ? greedy.makespan() : std::numeric_limits<double>::infinity();
  timing->count(greedy.actions());
  std::vector<std::pair<double, Order>> found;
  // The largest groups come first, because the largest groups that fit are mostly the best.
  for (int64_t groups = 1; groups <= m; ++groups) {
    const int64_t largest = (m + groups - 1) / groups;
    if (groups > 1 && (m + groups - 2) / (groups - 1) == largest)
      // The number before has the same largest group, so this one is skipped.
      continue;
    pattern.groups = even_groups(m, groups);
    const int64_t least = (pattern.v - 1) * largest;
    for (const bool halves : {false, true}) {
      if (halves && !split) continue;
      pattern.split = halves;
      for (int64_t step = 0; step <= 2; ++step) {
        if (timing->actions() > most || (stop && stop())) break;
        Order order;
        bool fits = true;
        for (int64_t worker = 0; worker < p && fits; ++worker) {
          WorkerOrder& tokens = order.emplace_back();
          const auto try_with = [&](int64_t warm_up) {
            tokens = loop_order(pattern, worker, warm_up);
            // Making the list and checking it take about as much work as looking at it four times.
            timing->count(look_work(4 * tokens.size()));
            return keeps_limits(workload, static_cast<int32_t>(worker), tokens);
          };
          // Finds the most warm-up that fits, by halving the range, because less warm-up holds
          // less.
          int64_t some = least;
          int64_t none = least + step * (p - 1 - worker);
          if (try_with(none)) continue;
          fits = none > some && try_with(some);
          if (!fits) break;
          while (some + 1 < none) {
            const int64_t middle = some + (none - some) / 2;
            (try_with(middle) ? some : none) = middle;
          }
          try_with(some);
        }
        if (!fits || !timing->run(order) || timing->makespan() >= longest) continue;
        found.emplace_back(timing->makespan(), std::move(order));
        std::stable_sort(found.begin(), found.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
        if (found.size() > count) found.pop_back();
      }
    }
  }
  std::vector<Order> orders;
  for (auto& [makespan, order] : found) orders.push_back(std::move(order));
  return orders;
}

}  // namespace gpipe::internal
