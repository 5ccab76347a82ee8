// Greedy: makes an order in which each worker decides, when it is free, what to do next. Internal
// to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_SEARCH_GREEDY_H_
#define GPIPE_SCHEDULE_SEARCH_GREEDY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

// The rule by which a worker decides.
struct GreedyRule {
  // Per stage, the most micro-batches between forward and first part of the backward. This bounds
  // the warm-up and shapes the steady state. With limits on memory alone the front of a pipeline
  // would fill itself with micro-batches that the back is not ready for.
  std::vector<int32_t> most_live;
  // Per worker: a weight gradient fills a gap if the gap is at least this part of the weight
  // gradient's time.
  std::vector<double> gap;
  // Per worker: if more weight gradients than this are pending, one of them comes next in any case.
  std::vector<int32_t> most_pending;
  // Gradients are chosen as if they could begin gradient_bonus earlier, in units of the mean time
  // of an action. Actions are also chosen as if they could begin a part of depth_bonus earlier; the
  // part is larger for later stages.
  double gradient_bonus = 0.0;
  double depth_bonus = 0.0;
  // Whether gradients come before forwards if both could begin at the same time.
  bool gradients_first = true;
  // Per stage: whether its backwards are whole. Empty: none is whole.
  std::vector<bool> whole;
  // If `sequence` is given, the forwards and the first parts of backwards come in its order. Its
  // weight gradients are ignored. Then only the places of weight gradients are decided: in gaps,
  // where too many are pending, and where the next action needs their memory. Not owned.
  const Order* sequence = nullptr;

  // A rule to begin with: the live micro-batches of a stage are proportional to the number of
  // stages from it to the end of the pipeline.
  static GreedyRule of(const Workload& workload);
};

// How far a rule may differ from the rule of a run without changing any decision. Most small
// changes of a rule change none.
struct GreedyMargins {
  // Per worker: the largest gap that was not filled and the smallest gap that was, in units of the
  // time of the weight gradient. If a gap did not decide, the number of pending weight gradients
  // did: `few` is the largest number with which none came next, `many` the smallest with which one
  // did.
  struct OfWorker {
    double unfilled = 0.0;
    double filled = 0.0;
    int32_t few = 0;
    int32_t many = 0;
  };
  // Per stage: the most live micro-batches with which a forward was allowed, and the fewest with
  // which it was refused.
  struct OfStage {
    int32_t allowed = 0;
    int32_t refused = 0;
  };
  std::vector<OfWorker> workers;
  std::vector<OfStage> stages;

  // Whether a run by `other` makes the same order as the run by `rule`, whose margins these are.
  // Returns false if rounding could decide.
  bool cover(const GreedyRule& rule, const GreedyRule& other) const;
};

// Thread-safety: none.
class Greedy {
 public:
  // The object keeps a reference to the workload.
  explicit Greedy(const Workload& workload);

  // Makes an order that keeps the limits. Returns false if the limits let nothing run any more.
  // That cannot happen where each worker has room for one micro-batch in each of its stages: a
  // forward leaves room for the micro-batch in the worker's later stages. Also returns false if
  // `stop`, which is called now and then, returns true.
  bool run(const GreedyRule& rule, Order* order, const std::function<bool()>& stop = {});

  // The work so far, measured as by Timing::actions() and weighted by time.
  int64_t actions() const { return actions_; }

  // The margins of the last run that came to its end.
  const GreedyMargins& margins() const { return margins_; }
  // The makespan and the mean end of that run's order, bitwise as Timing computes them.
  double makespan() const;
  double mean_end() const;

 private:
  struct Choice {
    double start;
    int32_t stage;
    ActionKind kind;
  };
  // The data of a stage on which decisions depend, side by side in memory. The first members change
  // in a run.
  struct Stage {
    int32_t forwards = 0;
    int32_t firsts = 0;
    int32_t seconds = 0;
    int32_t most_live = 0;
    bool whole = false;
    double oldest_end =
        0.0;  // when its oldest pending weight gradient could begin; infinite if it has none
    double depth = 0.0;  // the rule's bonus for this stage
    double held = 0.0;
    double waiting = 0.0;
    double reserve = 0.0;  // memory for a micro-batch in the worker's later stages
    double activation_takes = 0.0;
    double gradient_takes = 0.0;
    std::array<double, kComputingKinds> cost = {};
    size_t row = 0;  // the index of the stage's first cell
    size_t worker = 0;
  };

  void begin(const GreedyRule& rule);
  template <bool kSequence, bool kSkips>
  Choice choose(const GreedyRule& rule, size_t worker);
  template <bool kSequence, bool kSkips>
  bool run_as(const GreedyRule& rule, Order* order, const std::function<bool()>& stop);
  // Marks the choice of `worker` as unknown. Its next action does not begin before `start`.
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
  std::vector<double> limit_;  // per worker, with a margin for rounding
  std::vector<int64_t> decision_work_;
  std::vector<int32_t> pending_;  // per worker: the pending weight gradients
  std::vector<Choice> choice_;
  std::vector<char> known_;         // whether choice_ is what the worker would do now
  std::vector<size_t> next_index_;  // per worker: the place in the rule's sequence
  // A tree over the workers, whose root is the worker that begins first: node k has the nodes 2k
  // and 2k + 1 below it, and the leaves begin at leaves_, a power of two.
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
