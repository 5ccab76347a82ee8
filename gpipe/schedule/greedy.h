// Greedy: makes an order by letting each worker decide when it is free. Internal to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_GREEDY_H_
#define GPIPE_SCHEDULE_GREEDY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "gpipe/schedule/workload.h"

namespace gpipe::internal {

// How a worker decides.
struct GreedyRule {
  // Per stage, the most micro-batches between forward and first part of the backward: what bounds
  // the warm-up and shapes the steady state. From limits on memory alone the front of a pipeline
  // fills itself with micro-batches that the back is not ready for.
  std::vector<int32_t> most_live;
  // Per worker: a weight gradient fills a gap of at least this part of its time.
  std::vector<double> gap;
  // Per worker: with more weight gradients pending than this, one comes next in any case.
  std::vector<int32_t> most_pending;
  // Begins of gradients count as so much earlier, in the time of a mean action; and those of later
  // stages, by their place in the pipeline.
  double gradient_bonus = 0.0;
  double depth_bonus = 0.0;
  // At one time gradients come before forwards; otherwise after them.
  bool gradients_first = true;
  // Per stage: whole backwards, not halves. Empty: none is whole.
  std::vector<bool> whole;
  // If given, the forwards and the first parts of backwards are in this order (which may have
  // weight gradients; they do not count), and only weight gradients are to be decided: those in
  // gaps, those that are too many, and those whose memory the next action needs. Not owned.
  const Order* sequence = nullptr;

  // A rule to begin with: the live micro-batches of a stage in the proportion of the way that is
  // before them.
  static GreedyRule of(const Workload& workload);
};

// Thread-safety: none.
class Greedy {
 public:
  // Keeps a reference to the workload.
  explicit Greedy(const Workload& workload);

  // Makes an order that keeps the limits. False if the limits let nothing run any more. That cannot
  // happen where each worker has room for one micro-batch in each of its stages: a forward leaves
  // room for the micro-batch in the worker's later stages. False, too, if `stop` says so: it is
  // asked now and then.
  bool run(const GreedyRule& rule, Order* order, const std::function<bool()>& stop = {});

  // A measure of work: as Timing::actions(), weighted by time.
  int64_t actions() const { return actions_; }

 private:
  struct Choice {
    double start;
    int32_t stage;
    ActionKind kind;
  };
  Choice choose(const GreedyRule& rule, size_t worker) const;

  const Workload& workload_;
  const double mean_;
  const double same_;
  std::vector<double> reserve_;  // per stage: for the worker's later stages
  std::vector<double> forward_end_;
  std::vector<double> gradient_end_;
  std::vector<int32_t> forwards_;
  std::vector<int32_t> firsts_;
  std::vector<int32_t> seconds_;
  std::vector<double> now_;
  std::vector<double> memory_;
  std::vector<Choice> choice_;
  std::vector<char> stale_;
  std::vector<size_t> next_index_;  // per worker: the place in the rule's sequence
  int64_t actions_ = 0;
};

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_GREEDY_H_
