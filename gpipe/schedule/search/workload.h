// Workload, Order, Timing: the data of generators and the search. Internal to gpipe/schedule.
//
// Here every table is ascending (ScheduleFacts::ascending): micro-batches ascend in each stage. So
// a worker's list needs to say only which stage does what; the micro-batch follows by counting.
// That makes an order small, and a change of it cheap to try.
#ifndef GPIPE_SCHEDULE_SEARCH_WORKLOAD_H_
#define GPIPE_SCHEDULE_SEARCH_WORKLOAD_H_

#include <array>
#include <cstdint>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::internal {

// The kinds of action in an order: offloads are added afterwards (offloads.h).
inline constexpr int kComputingKinds = static_cast<int>(ActionKind::kOffload);

// The actions to be ordered and their costs: flat arrays. The code that fills them checks them.
struct Workload {
  // A workload whose stages all have the costs `cost`. Each transfer between workers takes
  // `transfer`; a stage holds 1 per micro-batch from its forward to its backward or weight
  // gradient, and a worker may hold at most `limit`.
  static Workload uniform(const Placement& placement, int64_t micro_batches, const StageCost& cost,
                          double transfer, double limit);

  int32_t stages = 0;
  int32_t workers = 0;
  int32_t micro_batches = 0;
  std::vector<int32_t> worker_of;                         // stage -> worker
  std::vector<std::vector<int32_t>> stages_of;            // worker -> its stages, ascending
  std::vector<std::array<double, kComputingKinds>> cost;  // per stage, by kind
  std::vector<double> activation_takes;  // per stage: the transfer to it from the stage before
  std::vector<double> gradient_takes;    // per stage: the transfer to it from the stage after
  // A value that goes straight to a later stage. The chain of activations already orders the two
  // stages for each micro-batch, so a skip makes nothing run in another order; it may only arrive
  // later.
  struct Skip {
    int32_t stage = 0;              // the stage at the other end
    double activation_takes = 0.0;  // the transfer to the later of the two stages
    double gradient_takes = 0.0;    // the transfer of the gradient back
  };
  // Per stage, the skips from earlier stages. The list is empty if the workload has no skips.
  std::vector<std::vector<Skip>> skips_into;
  // Per stage, the same skips, each at the stage that it comes from.
  std::vector<std::vector<Skip>> skips_from;
  std::vector<double> held;     // per stage: memory of a micro-batch after its forward
  std::vector<double> waiting;  // per stage: after its input gradient, until its weight gradient
  std::vector<double> limit;    // per worker; infinite if there is none

  // The mean time of an action: the scale by which times are large or small.
  double mean_cost() const;
  void add_skip(int32_t from, int32_t to, double activation_takes, double gradient_takes);
  // The workload with all times multiplied by `factor`.
  Workload scaled(double factor) const;
  // Whether a whole backward takes another time than its halves.
  bool whole_differs() const;
};

// A kind of action of a stage.
using Token = uint32_t;

constexpr Token token(ActionKind kind, int32_t stage) {
  return static_cast<Token>(stage) * kComputingKinds + static_cast<Token>(kind);
}
constexpr int32_t stage_of(Token token) { return static_cast<int32_t>(token / kComputingKinds); }
constexpr ActionKind kind_of(Token token) {
  return static_cast<ActionKind>(token % kComputingKinds);
}

using WorkerOrder = std::vector<Token>;
using Order = std::vector<WorkerOrder>;  // per worker

int64_t count_of(const Order& order);  // its actions
Schedule to_schedule(const Order& order, int64_t stages, int64_t micro_batches);
// The order of a schedule that is ascending (ScheduleFacts).
Order to_order(const Schedule& schedule);
// The order without the micro-batches from `micro_batches` on. It runs if the given order does,
// because no action waits for a later micro-batch.
Order truncated(const Order& order, int64_t stages, int64_t micro_batches);

// The order that holds least: one micro-batch at a time, with whole backwards. It runs on any
// placement.
Order one_at_a_time(const Workload& workload);

// The work of looking at so many tokens of lists without running them, in units of the time of an
// action in Timing::run().
constexpr int64_t look_work(size_t tokens) { return static_cast<int64_t>(tokens / 4 + 1); }

// By how much an action changes the memory that its worker holds.
inline double memory_change(const Workload& workload, Token token) {
  const auto stage = static_cast<size_t>(stage_of(token));
  switch (kind_of(token)) {
    case ActionKind::kForward:
      return workload.held[stage];
    case ActionKind::kBackward:
      return -workload.held[stage];
    case ActionKind::kInputGradient:
      return workload.waiting[stage] - workload.held[stage];
    case ActionKind::kWeightGradient:
      return -workload.waiting[stage];
    case ActionKind::kOffload:
    case ActionKind::kReload:
      break;  // never in an order: see offloads.h
  }
  return 0.0;
}
// How much memory the worker needs at most.
double peak_memory(const Workload& workload, const WorkerOrder& order);

// Runs orders of one workload, again and again, without allocating.
//
// Thread-safety: none.
class Timing {
 public:
  // The object keeps a reference to the workload.
  explicit Timing(const Workload& workload);

  // Puts times on an order in which every stage has as many forwards, first parts and second parts
  // as there are micro-batches. Returns whether it runs to its end. If `link` is not negative, each
  // transfer between the workers of links()[link] takes `extra` longer.
  bool run(const Order& order, int32_t link = -1, double extra = 0.0);

  // Keeps the last run for rerun(). It must have come to its end and had no slower link.
  void keep();
  // The same as run(order), for an order that differs from that of the kept run only in the list of
  // `worker` from `index` on. Actions that began before the change are not run again, but are
  // counted as if they were.
  bool rerun(const Order& order, size_t worker, size_t index);

  // The makespan of the last run that came to its end.
  double makespan() const { return makespan_; }
  // The mean over the workers of the time at which they end.
  double mean_end() const;
  // The actions that decide the makespan, as (worker, place in its list), the last action first.
  // Each begins when the next one in `path` ends, or when what that one sends arrives.
  struct Place {
    int32_t worker;
    int32_t index;
  };
  void critical_path(const Order& order, std::vector<Place>* path) const;

  const Workload& workload() const { return workload_; }
  // Pairs of workers between which values are sent.
  const std::vector<std::array<int32_t, 2>>& links() const { return links_; }
  // How many actions all runs had: the measure of work of a search.
  int64_t actions() const { return actions_; }
  // Adds the work that a search does outside of run() and rerun() to actions(). The unit is the
  // work of one action.
  void count(int64_t work) { actions_ += work; }

 private:
  const Workload& workload_;
  std::vector<std::array<int32_t, 2>> links_;
  std::vector<int32_t> link_before_;  // per stage: the link from the stage before it, or -1
  // Per stage: the links of the workload's skips_into and skips_from.
  std::vector<std::vector<int32_t>> links_into_;
  std::vector<std::vector<int32_t>> links_from_;
  // All that a run must know of a token, so that a run treats every kind of action alike. Actions
  // that wait for nothing, or that no action waits for, point to dummy cells.
  struct Rule {
    double cost = 0.0;
    double takes = 0.0;  // the transfer of the value that it waits for
    double extra = 0.0;  // the additional time of a slower link
    size_t row = 0;      // its first cell in end_ and index_
    size_t need_row = 0;
    int32_t count = 0;  // where done_ counts its cells
    int32_t need_count = 0;
    int32_t step = 0;   // how much the action adds to that count
    int32_t waits = 0;  // the worker that may wait for the action
  };
  std::vector<Rule> rules_;  // by token
  // Per action, its end and its place in the worker's list. The forwards come first, by stage and
  // micro-batch, then the first parts of backwards.
  std::vector<double> end_;
  std::vector<int32_t> index_;
  size_t gradients_ = 0;  // the first cell of the first parts
  struct Started {
    double start;
    int32_t micro_batch;
  };
  std::vector<std::vector<Started>> started_;  // per worker and action
  std::vector<double> now_;
  std::vector<int32_t> next_index_;
  std::vector<int32_t> done_;
  std::vector<int32_t> runnable_;
  std::vector<int32_t> waits_for_;  // per worker: the count that it waits for, or -1
  double makespan_ = 0.0;
  int64_t actions_ = 0;
  // The slower link of the last run.
  int32_t link_ = -1;
  double extra_ = 0.0;
  // The kept run. Its actions that began before same_until_ are in started_, end_ and index_, too.
  std::vector<std::vector<Started>> kept_;
  std::vector<double> kept_now_;
  double same_until_ = 0.0;
  std::vector<int32_t> resumed_;  // per worker: the first action that the last run has run

  // Runs the actions from next_index_ on. done_ and now_ must be those of the actions before.
  bool go_on(const Order& order);
  template <bool kSkips>
  bool go_on_as(const Order& order);
  void restore(const Order& order, double from, double until);
  void slow_down(int32_t link, double extra);
  double arrival(const Workload::Skip& skip, int32_t link, size_t i, bool forward) const;
  double after_skips(size_t stage, size_t i, bool forward, double now) const;
};

// A lower bound of the makespan of any order. It is the largest of three bounds: the work of a
// worker and the time until its first action, the time of one micro-batch through all stages and
// back, and the time that follows from the limit on memory and from how long micro-batches need
// memory.
double lower_bound(const Workload& workload);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_WORKLOAD_H_
