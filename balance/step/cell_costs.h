// layer_seconds, cell_memory, offloaded_bytes: the stage's times that an action takes, the stage's
// bytes that a cell holds before, during and after it, and those that may go to the host.
//
// This is the only place that distinguishes kinds of actions for predictions of time and memory.
// (balance/choose/plan_check.h repeats this on purpose, as a second opinion.)
#ifndef BALANCE_STEP_CELL_COSTS_H_
#define BALANCE_STEP_CELL_COSTS_H_

#include "balance/step/cut_costs.h"
#include "gpipe/schedule/action.h"

namespace gpipe::balance {

// Seconds of the layers and of the loss in an action, both without a recompute.
double layer_seconds(const StageCosts& stage, ActionKind kind);
double loss_seconds(const StageCosts& stage, ActionKind kind);

// Whether an action of this kind begins a backward, so that a recompute is part of it.
bool begins_backward(ActionKind kind);
// Whether an activation or a gradient arrives before the action or leaves after it.
bool is_on_the_way(ActionKind kind);

// Which parts of a micro-batch a cell holds.
struct HeldParts {
  bool received = false;  // activations and skips from other stages
  bool kept = false;      // what the layers keep for their backward
  bool waiting = false;   // the part of both that the weight half of a split backward needs

  // The bytes of these parts.
  double bytes(const StageCosts& stage) const;
};

struct CellMemory {
  HeldParts before;
  HeldParts during;
  HeldParts after;
};

// The memory of a cell. `recomputed`: its forward keeps nothing for its backward. Offloads and
// reloads are for offloaded_bytes().
CellMemory cell_memory(ActionKind kind, bool recomputed);

// The bytes that an offload behind `after`, a forward or the first half of a backward, brings to
// the host (docs/design/offload.md, "What goes"): what the cell's operators made, without what
// other stages and the caller get; of a cell that recomputes its inputs, if they came from another
// stage. Where a profile does not tell the two apart, it is the less. A memory plan knows what a
// profile does not: what stays because it is small, or because a first cell made it.
double offloaded_bytes(const StageCosts& stage, ActionKind after, bool recomputed);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_CELL_COSTS_H_
