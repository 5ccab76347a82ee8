// verify: the check behind Schedule::verify(). It works on the bare table and does not depend on
// Schedule.
//
// There are four groups of checks, in this order. A later group runs only when the earlier ones are
// clean, because otherwise it could say nothing sensible.
//
// 1. Every action once: all forwards, or none (a backward half); every cell's backward whole (B, or
//    I and W), or none at all (a forward half); a stage's actions on one worker.
//
// 2. Order within a worker: an action comes after everything it needs that the same worker runs.
//
// 3. No deadlock with buffered sends: a send never waits; an action starts when its worker has
//    reached it and its inputs are there.
//
// 4. No deadlock with rendezvous sends (unless Sends::kBuffered is asked for): the sends of an
//    action and the receives of the worker's next action are posted together, and the worker waits
//    for all of them; a transfer happens once both its ends are posted. Between two stages of one
//    worker nothing is sent.
//
// docs/design/schedule.md says why these two.
#ifndef GPIPE_SCHEDULE_VERIFY_H_
#define GPIPE_SCHEDULE_VERIFY_H_

#include <cstdint>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"

namespace gpipe {

// What a transport promises about sends.
enum class Sends : uint8_t {
  kBuffered,    // a send ends at once; the value waits for its receiver (threads of one process)
  kRendezvous,  // a send may wait until its receiver is at the receive (messages between processes)
};

struct ScheduleFacts {
  // Per stage: the maximum number of micro-batches whose forward is done and whose backward is not
  // (for a split backward: whose weight gradient is not). In a forward half all stay alive; in a
  // backward half all are alive at the start.
  std::vector<int64_t> peak_live;
  // In units of one action; transfers take no time.
  int64_t makespan = 0;
  // Share of all workers' time until the makespan in which they are idle, 0 .. 1. For gpipe and
  // 1F1B this is (p - 1) / (m + p - 1).
  double bubble_ratio = 0.0;

  friend bool operator==(const ScheduleFacts& a, const ScheduleFacts& b) {
    return a.peak_live == b.peak_live && a.makespan == b.makespan &&
           a.bubble_ratio == b.bubble_ratio;
  }
};

namespace internal {

// Throws std::invalid_argument that lists every problem. The actions must be within `stages` and
// `micro_batches`, and `routes` must be for as many stages (throws std::invalid_argument if not).
ScheduleFacts verify(int64_t stages, int64_t micro_batches,
                     const std::vector<std::vector<Action>>& workers, const Routes& routes,
                     Sends sends);

}  // namespace internal
}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_VERIFY_H_
