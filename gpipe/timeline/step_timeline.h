// StepTimeline: when each action of a step ran on which worker, in a real run or in a simulated
// one.
//
// Times are whole nanoseconds, so that parts of a time add up to it exactly.
#ifndef GPIPE_TIMELINE_STEP_TIMELINE_H_
#define GPIPE_TIMELINE_STEP_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe {

struct TimelineAction {
  Action action;
  int64_t begin = 0;
  int64_t end = 0;
  // The part of the action in which it recomputed. If both times are equal, it did not recompute.
  int64_t recompute_begin = 0;
  int64_t recompute_end = 0;
  bool failed = false;  // whether the action threw

  int64_t recompute() const { return recompute_end - recompute_begin; }
};

// A plain value. The times count from an arbitrary moment. The actions of each worker are in the
// order in which they ran, one after another.
struct StepTimeline {
  std::vector<std::vector<TimelineAction>> workers;
  bool simulated = false;
  // Event::run: the number of the step in its process.
  int64_t run = 0;
  // Whether an action had begun and not ended when this timeline was made: the step was still
  // running, or an observer threw.
  bool unfinished = false;

  // The begin of the first action and the end of the last one; both are 0 if there are no actions.
  int64_t begin() const;
  int64_t end() const;
  bool failed() const;  // whether one of the actions failed
  // Whether the step seems to have run to its end: no action failed or is unfinished, and all of
  // `stages` stages (by default those that are seen) ran the same micro-batches forward, and all or
  // none of them backward. A step that was stopped just between two micro-batches in all stages
  // looks like a whole step of fewer micro-batches.
  bool whole(int64_t stages = 1) const;
};

// Adds `by` nanoseconds to all times of the step.
void move_clock(StepTimeline& step, int64_t by);

// The timeline of a simulated run.
//
// `seconds`: what one unit of the simulation's time stands for. `recompute`: how much of an
// action's time is a recompute, in the simulation's unit. The recompute comes first in its action.
// Without `recompute` there are none.
//
// Throws std::invalid_argument if `seconds` is not above 0, for a run of more than a century, and
// for a recompute that is longer than its action or below 0.
StepTimeline to_timeline(const Simulation& simulation, double seconds = 1.0,
                         const ActionCost& recompute = nullptr);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_STEP_TIMELINE_H_
