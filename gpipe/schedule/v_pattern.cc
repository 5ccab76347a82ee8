#include "gpipe/schedule/v_pattern.h"

#include <algorithm>
#include <deque>
#include <map>
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
      const Units at = units(r, waits);
      for (size_t a = 0; a < 4; ++a) {
        for (size_t b = 0; b < a; ++b) {
          if ((at[a] - at[b]) % kPeriod == 0) return true;
        }
      }
    }
    return false;
  };
  // Best at the turn from forwards to gradients, where every micro-batch turns; elsewhere if that
  // does not help.
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
    const Units at = units(r, *least);
    const Token tokens[] = {token(kF, stages[0]), token(kF, stages[1]), token(kI, stages[1]),
                            token(kI, stages[0])};
    std::map<int64_t, Token> slots;
    for (int64_t i = 0; i < micro_batches; ++i) {
      for (size_t k = 0; k < 4; ++k) slots[at[k] + kPeriod * i] = tokens[k];
    }
    WorkerOrder& list = order.emplace_back();
    std::deque<int32_t> pending;
    auto next = slots.begin();
    for (int64_t unit = slots.begin()->first; next != slots.end() || !pending.empty(); ++unit) {
      if (next != slots.end() && next->first == unit) {
        list.push_back(next->second);
        if (kind_of(next->second) == kI) {
          pending.push_back(stage_of(next->second));
        }
        ++next;
      } else if (!pending.empty()) {
        list.push_back(token(kW, pending.front()));
        pending.pop_front();
      }
    }
  }
  return order;
}

std::vector<std::array<int64_t, 2>> all_steps() {
  std::vector<std::array<int64_t, 2>> steps;
  for (int64_t up = 1; up < kPeriod; ++up) {
    for (int64_t down = 1; down < kPeriod; ++down) steps.push_back({up, down});
  }
  return steps;
}

}  // namespace gpipe::internal
