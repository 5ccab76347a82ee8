// Schedule: the list of actions that each worker runs, in their order.
//
// A schedule holds no times and no tensors; an action starts when the data it waits for is there.
// `compile` (program.h) joins a schedule with routes, `simulate` (simulate.h) puts times on it,
// `draw` (drawing.h) shows it. docs/design/schedule.md says why it is a value and how deadlocks are
// found.
#ifndef GPIPE_SCHEDULE_SCHEDULE_H_
#define GPIPE_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/verify.h"

namespace gpipe {

// A table of workers and their actions: an immutable value, cheap to copy.
//
// Thread-safety: safe to read from any thread.
//
// Example:
//   Schedule schedule = Schedule::one_f_one_b(/*stages=*/4, /*micro_batches=*/8);
//   ScheduleFacts facts = schedule.verify();
//   schedule.actions(3);                               // F3.0 B3.0 F3.1 B3.1 ...
//   Schedule::from_text(schedule.to_text()) == schedule;
class Schedule {
 public:
  // The most cells (stages x micro-batches): far more than any mini-batch needs, and few enough for
  // memory.
  static constexpr int64_t kMostCells = int64_t{1} << 24;

  // Any table of workers and their actions; several stages may share a worker. Checks the ranges
  // only: throws std::invalid_argument for a stage or micro-batch that does not exist, for counts
  // below 1, for more than 2^24 cells (stages x micro-batches), and for an invalid kind of action.
  // verify() says whether the table makes sense.
  static Schedule create(int64_t stages, int64_t micro_batches,
                         std::vector<std::vector<Action>> workers);

  // Fill-drain, all forwards and then all backwards (Huang et al., "GPipe", 2019): worker j runs
  // stage j, forwards 0 .. m-1, then backwards m-1 .. 0. Every stage holds all m micro-batches in
  // between. fill_drain() (generators.h) has the backwards in the order 0 .. m-1.
  // Throws as create() does.
  static Schedule gpipe(int64_t stages, int64_t micro_batches);

  // One forward, one backward (Narayanan et al., "PipeDream", 2019, in its flushing form, Fan et
  // al., "DAPPLE", 2021): worker j runs stage j. It runs min(m, p-1-j) forwards to warm up, then
  // one forward and one backward in turn (steady state), then the remaining backwards (cool-down);
  // the backwards are in the order 0 .. m-1. Stage j holds at most min(m, p-j) micro-batches. It
  // takes as long as fill-drain, with less memory. Throws as create() does.
  static Schedule one_f_one_b(int64_t stages, int64_t micro_batches);

  int64_t stages() const { return rep_->stages; }
  int64_t micro_batches() const { return rep_->micro_batches; }
  int64_t workers() const { return static_cast<int64_t>(rep_->workers.size()); }
  // Throws std::out_of_range for a worker that does not exist.
  const std::vector<Action>& actions(int64_t worker) const;
  const std::vector<std::vector<Action>>& table() const { return rep_->workers; }
  // The worker that runs `stage`. If several do, which verify() reports, it is the first one.
  // Throws std::invalid_argument if none does.
  int64_t worker_of(int64_t stage) const;
  // Which worker runs each stage. Throws std::invalid_argument if a stage or a worker has no
  // actions.
  Placement placement() const;
  // Throws std::invalid_argument that lists the stages which are not where `placement` has them, or
  // says that the numbers of stages or workers differ.
  void check(const Placement& placement) const;

  // Returns what the schedule costs. Throws std::invalid_argument with a list of the problems (at
  // most the first 100, and how many there are). See verify.h for what is checked. `sends` is what
  // the transport promises: a schedule that passes with the default runs over any transport.
  // Without routes only the chain of activations and gradients is checked: enough where at least
  // the skips are buffered (docs/design/schedule.md).
  //
  // Takes about 1 us per action, and so does compile(): keep the result instead of asking in each
  // step.
  ScheduleFacts verify(Sends sends = Sends::kRendezvous) const;
  ScheduleFacts verify(const Routes& routes, Sends sends = Sends::kRendezvous) const;

  // The schedule with only these kinds of action, in the same order on the same workers. The
  // forward half is only({kForward}), and the backward half is only({kBackward, kInputGradient,
  // kWeightGradient}). Throws std::invalid_argument for an invalid kind.
  Schedule only(std::initializer_list<ActionKind> kinds) const;

  // A text for people and for diffs, and its exact inverse:
  //   stages 2
  //   micro_batches 1
  //   worker 0: F0.0 B0.0
  //   worker 1: F1.0 B1.0
  // The grammar: a line "stages N", a line "micro_batches N", and for each worker, in order, a line
  // "worker N:" and its actions (Action::to_text()), with blanks between. Lines between
  // "micro_batches" and the first worker are reserved ("slices N", for example).
  // from_text() also takes empty lines and comments that start with '#'. It throws
  // std::invalid_argument that names the line and what was expected there.
  std::string to_text() const;
  static Schedule from_text(std::string_view text);

  friend bool operator==(const Schedule& a, const Schedule& b) {
    return a.rep_ == b.rep_ ||
           (a.stages() == b.stages() && a.micro_batches() == b.micro_batches() &&
            a.rep_->workers == b.rep_->workers);
  }
  friend bool operator!=(const Schedule& a, const Schedule& b) { return !(a == b); }
  // Writes to_text(): a line for each worker.
  friend std::ostream& operator<<(std::ostream& out, const Schedule& schedule);

 private:
  struct Rep {
    int64_t stages;
    int64_t micro_batches;
    std::vector<std::vector<Action>> workers;
    std::vector<int32_t> worker_of;  // stage -> worker, -1 for none
  };

  explicit Schedule(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

// Makes a schedule for a pipeline whose size is known only later: Schedule::gpipe,
// Schedule::one_f_one_b, or a user's own.
using ScheduleGenerator = std::function<Schedule(int64_t stages, int64_t micro_batches)>;

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_SCHEDULE_H_
