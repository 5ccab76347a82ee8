// draw: the timeline of a schedule as text, with a row per worker and a column per unit of time.
#ifndef GPIPE_SCHEDULE_DRAWING_H_
#define GPIPE_SCHEDULE_DRAWING_H_

#include <cstdint>
#include <string>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// How many columns each action takes, and each copy of an offload or a reload; at least 1.
struct DrawingCosts {
  int64_t forward = 1;
  int64_t backward = 1;
  int64_t input_gradient = 1;
  int64_t weight_gradient = 1;
  int64_t offload = 1;
  int64_t reload = 1;
};

// draw(Schedule::one_f_one_b(2, 3)):
//   0: F0 F1 .. B0 F2 B1 .. B2        dots: the worker is idle
//   1: .. F0 B0 F1 B1 F2 B2 ..
// With backward = 2 a backward is drawn as "B0---". Unless each worker j runs stage j and no other,
// stages are shown as well: "F0.3" is stage 0, micro-batch 3. If a worker offloads cells, a row for
// its copies to the host and one for those from it follow, without dots:
//   0: F0 F1 F2 B2 B1 B0
//   O:    O0
//   L:             L0
// The device's memory goes and comes at the places of the table. Throws std::invalid_argument for a
// cost below 1, for a drawing of more than 2^28 characters, and if the schedule does not verify
// with buffered sends.
std::string draw(const Schedule& schedule, const DrawingCosts& costs = {});

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_DRAWING_H_
