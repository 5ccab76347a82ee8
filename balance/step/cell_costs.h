// layer_seconds, cell_memory: which of a stage's times an action of it takes, and which of its
// bytes a cell holds before, during and after it.
//
// The only place where kinds of actions are told apart for predictions of time and memory.
// (balance/choose/plan_check.h does it again on purpose: it is a second opinion.)
#ifndef BALANCE_STEP_CELL_COSTS_H_
#define BALANCE_STEP_CELL_COSTS_H_

#include "balance/step/cut_costs.h"
#include "gpipe/schedule/action.h"

namespace gpipe::balance {

// Seconds of the layers, of the loss, neither with a recompute.
double layer_seconds(const StageCosts& stage, ActionKind kind);
double loss_seconds(const StageCosts& stage, ActionKind kind);

// Whether it begins a backward, so that a recompute is part of it.
bool begins_backward(ActionKind kind);
// Whether a gradient or an activation arrives before it or leaves after it.
bool is_on_the_way(ActionKind kind);

// What of a micro-batch a cell holds.
struct HeldParts {
  bool received = false;  // activations and skips from other stages
  bool kept = false;      // what the layers keep for their backward
  bool waiting = false;   // what is left of both for the second half of a split backward

  // The bytes of these parts.
  double bytes(const StageCosts& stage) const;
};

struct CellMemory {
  HeldParts before;
  HeldParts during;
  HeldParts after;
};

// Of a cell whose forward keeps nothing for its backward (`recomputed`), or does.
CellMemory cell_memory(ActionKind kind, bool recomputed);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_CELL_COSTS_H_
