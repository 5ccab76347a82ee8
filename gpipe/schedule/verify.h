// verify: the check behind Schedule::verify(). It works on the bare table of workers and actions
// and does not depend on Schedule.
//
// There are four groups of checks, in this order. A later group runs only when the earlier ones are
// clean, because otherwise it could say nothing sensible.
//
// 1. Every action once: all forwards, or none (a backward half); every cell's backward whole (B, or
//    I and W), or none at all (a forward half); a stage's actions on one worker; offloads and
//    reloads in pairs, and only in a table with both halves.
//
// 2. Order within a worker: an action comes after everything it needs that the same worker runs. A
//    cell's offload and its reload are both between its forward and its next part (B or I), or both
//    between the halves of its backward.
//
// 3. No deadlock with buffered sends: a send never waits; an action starts when its worker has
//    reached it and its inputs are there.
//
// 4. No deadlock with rendezvous sends (unless Sends::kBuffered is asked for): the sends of an
//    action and the receives of the worker's next action are posted together, and the worker waits
//    for all of them; a transfer happens once both its ends are posted. Between two stages of one
//    worker nothing is sent. With Sends::kPostedAhead receives may be posted earlier, and the facts
//    say how much earlier they must be.
//
// docs/design/schedule.md says why deadlocks are checked under these two rules for sends.
#ifndef GPIPE_SCHEDULE_VERIFY_H_
#define GPIPE_SCHEDULE_VERIFY_H_

#include <cstdint>
#include <iosfwd>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"

namespace gpipe {

// The promises of a transport about sends.
enum class Sends : uint8_t {
  kBuffered,    // a send ends at once; the value waits for its receiver (threads of one process)
  kRendezvous,  // a send may wait until its receiver is at the receive (messages between processes)
  kPostedAhead,  // as kRendezvous, but receives are posted as early as the facts say
};

// Writes "buffered", "rendezvous" or "posted ahead".
std::ostream& operator<<(std::ostream& out, Sends sends);

// How early receives must be posted so that sends that wait for their receivers neither deadlock
// nor overtake each other. The numbers are sufficient. If 0 is sufficient everywhere, all are 0.
// Otherwise they need not be minimal, because one channel might need less if another had more.
// There is one channel for each pair of workers and direction. Values take it in the order in which
// the sender's actions produce them, and their receives are posted in that order.
struct ReceivesAhead {
  int32_t from_worker = 0;
  int32_t to_worker = 0;
  // The receives of an action are posted this many actions earlier; 0: just before the action
  // itself.
  int64_t actions = 0;

  friend bool operator==(const ReceivesAhead& a, const ReceivesAhead& b) {
    return a.from_worker == b.from_worker && a.to_worker == b.to_worker && a.actions == b.actions;
  }
  // Writes "0 -> 1: 2": the workers and the number of actions.
  friend std::ostream& operator<<(std::ostream& out, const ReceivesAhead& ahead);
};

// The costs of a schedule. Times are in units of one action; transfers, offloads and reloads take
// no time.
struct ScheduleFacts {
  // Per stage: the maximum number of micro-batches whose forward is done and whose backward is not
  // (for a split backward: whose weight gradient is not). From its offload to its reload a cell is
  // not counted. In a forward half all stay alive; in a backward half all are alive at the start.
  std::vector<int64_t> peak_live;
  // Per stage: the time from its first start to its last end, and how much of it no action of the
  // stage runs. (The "zero bubble" of papers is about a worker's idle time, not counting the fill.)
  std::vector<int64_t> alive;
  std::vector<int64_t> idle;
  // The peak of each worker: the maximum of the sum over its stages. All are 0 for a worker without
  // actions.
  std::vector<int64_t> worker_peak_live;
  std::vector<int64_t> worker_alive;
  std::vector<int64_t> worker_idle;
  int64_t makespan = 0;
  // Share of all workers' time until the makespan in which they are idle, 0 .. 1. For gpipe and
  // 1F1B this is (p - 1) / (m + p - 1).
  double bubble_ratio = 0.0;
  // Whether gradients are summed in ascending order: in every stage forwards ascend, the first
  // parts of backwards (B or I) ascend, and the second parts (B or W) ascend, so that no B comes
  // while the stage has a pending W. All such schedules give the same bits.
  bool ascending = false;
  // With Sends::kPostedAhead: for each pair of workers and direction in which values are sent,
  // ascending. Empty otherwise.
  std::vector<ReceivesAhead> receives_ahead;

  friend bool operator==(const ScheduleFacts& a, const ScheduleFacts& b) {
    return a.peak_live == b.peak_live && a.alive == b.alive && a.idle == b.idle &&
           a.worker_peak_live == b.worker_peak_live && a.worker_alive == b.worker_alive &&
           a.worker_idle == b.worker_idle && a.makespan == b.makespan &&
           a.bubble_ratio == b.bubble_ratio && a.ascending == b.ascending &&
           a.receives_ahead == b.receives_ahead;
  }
  friend bool operator!=(const ScheduleFacts& a, const ScheduleFacts& b) { return !(a == b); }
  // Writes a line for each fact.
  friend std::ostream& operator<<(std::ostream& out, const ScheduleFacts& facts);
};

namespace internal {

class Dependencies;

// Throws std::invalid_argument that lists every problem. The actions must be within `stages` and
// `micro_batches`, and `routes` must be for as many stages (throws std::invalid_argument if not).
ScheduleFacts verify(int64_t stages, int64_t micro_batches,
                     const std::vector<std::vector<Action>>& workers, const Routes& routes,
                     Sends sends);

// Makes the checks for buffered sends, without the facts, for callers that have made the table's
// dependencies already.
void check_buffered(int64_t stages, int64_t micro_batches,
                    const std::vector<std::vector<Action>>& workers, const Routes& routes,
                    const Dependencies& dependencies);

}  // namespace internal
}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_VERIFY_H_
