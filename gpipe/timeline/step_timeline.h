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
  // The part of it in which it recomputed. Equal: it did not.
  int64_t recompute_begin = 0;
  int64_t recompute_end = 0;
  bool failed = false;  // it threw

  int64_t recompute() const { return recompute_end - recompute_begin; }
};

// A plain value. The clock begins anywhere. Of each worker, actions are in the order in which they
// ran, one after another.
struct StepTimeline {
  std::vector<std::vector<TimelineAction>> workers;
  bool simulated = false;
  // Event::run: the number of the step in its process.
  int64_t run = 0;
  // Something had begun and had not ended when this was recorded: the step still ran, or an
  // observer threw.
  bool unfinished = false;

  // Of the first and the last action; 0 if there are none.
  int64_t begin() const;
  int64_t end() const;
  bool failed() const;  // one of the actions did
  // Whether it seems to have run to its end: no action failed or is unfinished, and all of `stages`
  // stages (by default those that are seen) ran the same micro-batches forward, and all or none of
  // them backward. A step that was stopped just between two micro-batches in all stages looks like
  // a whole one of fewer.
  bool whole(int64_t stages = 1) const;
};

// Adds so many nanoseconds to all of its times.
void move_clock(StepTimeline& step, int64_t by);

// The timeline of a simulated run.
//
// `seconds`: what one unit of the simulation's time stands for. `recompute`: how much of an
// action's time is a recompute, in the simulation's unit; it comes first. Empty: nothing is.
//
// Throws std::invalid_argument if `seconds` is not above 0, for a run of more than a century, and
// for a recompute that is longer than its action or below 0.
StepTimeline to_timeline(const Simulation& simulation, double seconds = 1.0,
                         const ActionCost& recompute = nullptr);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_STEP_TIMELINE_H_
