// interleaved, split_backward: small schedules written by hand. Tests check that all code accepts
// them.
#ifndef GPIPE_SCHEDULE_HAND_WRITTEN_H_
#define GPIPE_SCHEDULE_HAND_WRITTEN_H_

#include "gpipe/schedule/schedule.h"

namespace gpipe::testing {

// Interleaved: four stages on two workers, round robin, two micro-batches.
inline Schedule interleaved() {
  return Schedule::from_text(R"(
stages 4
micro_batches 2
worker 0: F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1
worker 1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1
)");
}

// A simple zero-bubble schedule. Backwards are split into input and weight gradients, and weight
// gradients run when the worker would be idle.
inline Schedule split_backward() {
  return Schedule::from_text(R"(
stages 2
micro_batches 2
worker 0: F0.0 F0.1 I0.0 W0.0 I0.1 W0.1
worker 1: F1.0 I1.0 F1.1 I1.1 W1.0 W1.1
)");
}

}  // namespace gpipe::testing

#endif  // GPIPE_SCHEDULE_HAND_WRITTEN_H_
