// Program: a schedule together with its routes, compiled for a runtime.
//
// A program says what each worker does, what it waits for before each action, and what it sends
// afterwards. A runtime that follows a program does not need to know stages, skips or schedules.
#ifndef GPIPE_SCHEDULE_PROGRAM_H_
#define GPIPE_SCHEDULE_PROGRAM_H_

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

struct Step {
  struct Send {
    int32_t worker = 0;  // the worker whose mailbox it is; possibly the sender itself
    int32_t slot = 0;
    int32_t stage = 0;  // the stage of that worker that takes the value

    friend bool operator==(const Send& a, const Send& b) {
      return a.worker == b.worker && a.slot == b.slot && a.stage == b.stage;
    }
    // Writes "2:4": the worker and the slot.
    friend std::ostream& operator<<(std::ostream& out, const Send& send);
  };

  Action action;
  // The slots of the worker's own mailbox that the action waits for. For a forward of stage j they
  // are in the order of routes.incoming(j); for a backward or input gradient in that of
  // routes.outgoing(j), as gradients take the routes backwards.
  std::vector<int32_t> receives;
  // The slots that the action fills. For a forward of stage j they are in the order of
  // routes.outgoing(j); for a backward or input gradient in that of routes.incoming(j). A weight
  // gradient neither receives nor sends.
  std::vector<Send> sends;

  // Writes "F1.0 <- 0 -> 2:4 2:5": the action waits for slot 0, and fills slots 4 and 5 of worker
  // 2.
  friend std::ostream& operator<<(std::ostream& out, const Step& step);
};

// A plain value. In a run every slot is filled by exactly one send and emptied by exactly one
// receive.
struct Program {
  std::vector<std::vector<Step>> workers;
  std::vector<int32_t> slots;  // per worker, the slots of its mailbox, used in ascending order

  // One line per step: "worker 1: ", then the step as << writes it.
  std::string to_text() const;
  friend std::ostream& operator<<(std::ostream& out, const Program& program);
};

// Compiles a schedule with its routes. The schedule may also be a forward half or a backward half
// (Schedule::only): then no slot is made for values that would cross between the halves; each stays
// with its stage. Throws std::invalid_argument if the schedule does not verify with buffered sends
// (mailboxes are buffers), or if the routes are for another number of stages.
Program compile(const Schedule& schedule, const Routes& routes);

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_PROGRAM_H_
