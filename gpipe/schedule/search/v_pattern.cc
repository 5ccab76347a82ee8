#include "gpipe/schedule/search/v_pattern.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace gpipe::internal {
namespace {

constexpr int64_t kPeriod = 6;
constexpr auto kF = ActionKind::kForward;
constexpr auto kI = ActionKind::kInputGradient;
constexpr auto kW = ActionKind::kWeightGradient;

}  // namespace

std::optional<Order> v_pattern(int64_t workers, int64_t micro_batches, int64_t up, int64_t down) {
  const int64_t p = workers;
  // The units in which a worker begins its four actions for the first micro-batch.
  using Units = std::array<int64_t, 4>;
  const auto units = [=](int64_t r, const std::array<int64_t, 3>& waits) {
    const int64_t second = up * (p - 1) + 1 + waits[0];
    const int64_t gradient = second + down * (p - 1) + 1 + waits[1];
    const int64_t last = gradient + up * (p - 1) + 1 + waits[2];
    return Units{up * r, second + down * (p - 1 - r), gradient + up * r, last + down * (p - 1 - r)};
  };
  const auto collides = [&](const std::array<int64_t, 3>& waits) {
    for (int64_t r = 0; r < std::min(p, kPeriod); ++r) {
      const Units begins = units(r, waits);
      for (size_t a = 0; a < 4; ++a) {
        for (size_t b = 0; b < a; ++b) {
          if ((begins[a] - begins[b]) % kPeriod == 0) return true;
        }
      }
    }
    return false;
  };
  // The waiting is at the turn from forwards to gradients, which is best. Only if no waiting there
  // helps, a micro-batch also waits at the other turns.
  std::optional<std::array<int64_t, 3>> least;
  for (int64_t b = 0; b < kPeriod && !least; ++b) {
    if (!collides({0, b, 0})) least = {0, b, 0};
  }
  for (int64_t sum = 1; sum < 2 * kPeriod && !least; ++sum) {
    for (int64_t a = 0; a <= sum && !least; ++a) {
      for (int64_t c = 0; a + c <= sum && !least; ++c) {
        if (!collides({a, sum - a - c, c})) least = {a, sum - a - c, c};
      }
    }
  }
  if (!least) return std::nullopt;
  Order order;
  for (int64_t r = 0; r < workers; ++r) {
    const int32_t stages[] = {static_cast<int32_t>(r), static_cast<int32_t>(2 * p - 1 - r)};
    const Units begins = units(r, *least);
    const Token tokens[] = {token(kF, stages[0]), token(kF, stages[1]), token(kI, stages[1]),
                            token(kI, stages[0])};
    // Per unit of the period, the index of the action in `tokens` that the worker runs then, or -1.
    // No two actions share a unit.
    std::array<int, kPeriod> turn;
    turn.fill(-1);
    for (size_t k = 0; k < 4; ++k) {
      turn[static_cast<size_t>(begins[k] % kPeriod)] = static_cast<int>(k);
    }
    WorkerOrder& list = order.emplace_back();
    std::deque<int32_t> pending;
    int64_t left = 4 * micro_batches;
    for (int64_t unit = begins[0]; left > 0 || !pending.empty(); ++unit) {
      const int k = turn[static_cast<size_t>(unit % kPeriod)];
      const int64_t since = k < 0 ? -1 : unit - begins[static_cast<size_t>(k)];
      if (since >= 0 && since < kPeriod * micro_batches) {
        const Token each = tokens[k];
        list.push_back(each);
        if (kind_of(each) == kI) pending.push_back(stage_of(each));
        --left;
      } else if (!pending.empty()) {
        list.push_back(token(kW, pending.front()));
        pending.pop_front();
      }
    }
  }
  return order;
}

int64_t least_held(int64_t workers) {
  // `workers` and kPeriod more micro-batches are enough. A micro-batch is done about 4p units after
  // it came, and its weight gradients soon after; one period later a worker has reached the most
  // that it ever holds.
  const std::optional<Order> pattern = v_pattern(workers, workers + kPeriod, 1, 1);
  int64_t most = 0;
  for (const WorkerOrder& tokens : *pattern) {
    int64_t held = 0;
    for (const Token each : tokens) {
      if (kind_of(each) == kF) most = std::max(most, ++held);
      if (kind_of(each) == kW) --held;
    }
  }
  return most;
}

std::vector<std::array<int64_t, 2>> all_steps() {
  std::vector<std::array<int64_t, 2>> steps;
  for (int64_t up = 1; up < kPeriod; ++up) {
    for (int64_t down = 1; down < kPeriod; ++down) steps.push_back({up, down});
  }
  return steps;
}

}  // namespace gpipe::internal
