#include "balance/step/cell_costs.h"

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
    // What goes counts as held: between the halves of a backward less goes, and what the pipeline
    // leaves on the device is not known here.
    case ActionKind::kOffload:
    case ActionKind::kReload:
      return {};
  }
  return {};
}

}  // namespace gpipe::balance
