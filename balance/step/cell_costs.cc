#include "balance/step/cell_costs.h"

#include <algorithm>
#include <cstdint>

namespace gpipe::balance {

double layer_seconds(const StageCosts& stage, ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return stage.forward;
    case ActionKind::kBackward:
      return stage.backward;
    case ActionKind::kInputGradient:
      return stage.input_gradient;
    case ActionKind::kWeightGradient:
      return stage.weight_gradient;
    case ActionKind::kOffload:
    case ActionKind::kReload:
      return 0.0;
  }
  return 0.0;
}

double loss_seconds(const StageCosts& stage, ActionKind kind) {
  if (kind == ActionKind::kForward) return stage.loss_forward;
  return begins_backward(kind) ? stage.loss_backward : 0.0;
}

bool begins_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
}

bool is_on_the_way(ActionKind kind) {
  return kind == ActionKind::kForward || begins_backward(kind);
}

double HeldParts::bytes(const StageCosts& stage) const {
  return (received ? static_cast<double>(stage.received) : 0.0) +
         (kept ? static_cast<double>(stage.kept) : 0.0) +
         (waiting ? static_cast<double>(stage.waiting) : 0.0);
}

CellMemory cell_memory(ActionKind kind, bool recomputed) {
  constexpr HeldParts kNothing;
  constexpr HeldParts kAll = {true, true, false};
  constexpr HeldParts kWaiting = {false, false, true};
  const HeldParts forwarded = {true, !recomputed, false};
  switch (kind) {
    case ActionKind::kForward:
      return {kNothing, forwarded, forwarded};
    case ActionKind::kBackward:
      return {forwarded, kAll, kNothing};
    case ActionKind::kInputGradient:
      return {forwarded, kAll, kWaiting};
    case ActionKind::kWeightGradient:
      return {kWaiting, kWaiting, kNothing};
    case ActionKind::kOffload:
    case ActionKind::kReload:
      return {};
  }
  return {};
}

double offloaded_bytes(const StageCosts& stage, ActionKind after, bool recomputed) {
  const int64_t leaves = stage.sent + stage.returned;
  int64_t bytes = 0;
  if (after == ActionKind::kInputGradient) {
    bytes = stage.waiting - stage.received - leaves;
  } else if (after == ActionKind::kForward) {
    const bool from_caller = stage.layers.first == 0;
    bytes = !recomputed ? stage.kept - leaves : from_caller ? 0 : stage.received;
  }
  return static_cast<double>(std::max<int64_t>(bytes, 0));
}

}  // namespace gpipe::balance
