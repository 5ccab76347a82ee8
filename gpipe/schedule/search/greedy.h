// Greedy: makes an order by letting each worker decide when it is free. Internal to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_SEARCH_GREEDY_H_
#define GPIPE_SCHEDULE_SEARCH_GREEDY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpipe/schedule/search/workload.h"

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

// How far a rule could be from that of a run for every decision to be the same: most small changes
// of a rule change nothing.
struct GreedyMargins {
  // Per worker: of the gaps, in the time of the weight gradient, the largest that was not filled
  // and the least that was; and of the pending ones likewise, where a gap did not decide.
  struct OfWorker {
    double unfilled = 0.0;
    double filled = 0.0;
    int32_t few = 0;
    int32_t many = 0;
  };
  // Per stage: the most live micro-batches with which a forward might come, and the least with
  // which none might.
  struct OfStage {
    int32_t allowed = 0;
    int32_t refused = 0;
  };
  std::vector<OfWorker> workers;
  std::vector<OfStage> stages;

  // Whether a run by `other` is the one by `rule`, whose margins these are. Says no where rounding
  // could decide.
  bool cover(const GreedyRule& rule, const GreedyRule& other) const;
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

  // Of the last run that came to its end.
  const GreedyMargins& margins() const { return margins_; }
  // What Timing has of its order, to the last bit.
  double makespan() const;
  double mean_end() const;

 private:
  struct Choice {
    double start;
    int32_t stage;
    ActionKind kind;
  };
  // What decisions read of a stage, side by side; the first lines of it change in a run.
  struct Stage {
    int32_t forwards = 0;
    int32_t firsts = 0;
    int32_t seconds = 0;
    int32_t most_live = 0;
    bool whole = false;
    double oldest_end = 0.0;  // when its oldest pending weight gradient could begin; or never
    double depth = 0.0;       // the rule's bonus
    double held = 0.0;
    double waiting = 0.0;
    double reserve = 0.0;  // for the worker's later stages
    double activation_takes = 0.0;
    double gradient_takes = 0.0;
    std::array<double, kActionKinds> cost = {};
    size_t row = 0;  // of its cells
    size_t worker = 0;
  };

  void begin(const GreedyRule& rule);
  template <bool kSequence, bool kSkips>
  Choice choose(const GreedyRule& rule, size_t worker);
  template <bool kSequence, bool kSkips>
  bool run_as(const GreedyRule& rule, Order* order, const std::function<bool()>& stop);
  // What `worker` could begin with is as yet unknown, but for that it is not before `start`.
  void forget(size_t worker, double start) {
    known_[worker] = 0;
    set_start(worker, start);
  }
  void set_start(size_t worker, double start);

  const Workload& workload_;
  const double mean_;
  const double same_;
  std::vector<Stage> stages_;
  std::vector<double> forward_end_;
  std::vector<double> gradient_end_;
  std::vector<double> now_;
  std::vector<double> memory_;
  std::vector<double> limit_;  // per worker, with what rounding may add
  std::vector<int64_t> decision_work_;
  std::vector<int32_t> pending_;  // per worker: weight gradients
  std::vector<Choice> choice_;
  std::vector<char> known_;         // whether choice_ is what the worker would do now
  std::vector<size_t> next_index_;  // per worker: the place in the rule's sequence
  // A tree over the workers, in whose root is who begins first: node k has the nodes 2k and 2k + 1
  // below it, and the leaves begin at leaves_, a power of two.
  struct Node {
    double start;
    uint64_t worker;
  };
  std::vector<Node> tree_;
  size_t leaves_ = 1;
  GreedyMargins margins_;
  double gradient_bonus_ = 0.0;
  int64_t actions_ = 0;
};

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_GREEDY_H_
