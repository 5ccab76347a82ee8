#include "experiments/schedule_claims/paired_idle.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe::experiments {
namespace {

// An action, or a pair of actions that start and end together.
struct Unit {
  std::vector<Action> actions;
  double time;
};

// Which neighbors are a pair follows from DualPipe's eight steps, whose lengths depend only on the
// worker.
std::vector<Unit> units_of(const Schedule& schedule, int64_t worker, const ActionCost& cost,
                           double pair_time) {
  const std::vector<Action>& actions = schedule.actions(worker);
  const int64_t workers = schedule.workers();
  const int64_t after = workers - 1 - worker;  // workers after it
  std::vector<Unit> units;
  size_t next = 0;
  const auto single = [&] {
    const Action& action = actions.at(next++);
    units.push_back({{action}, cost(action)});
  };
  const auto pair = [&] {
    units.push_back({{actions.at(next), actions.at(next + 1)}, pair_time});
    next += 2;
  };
  for (int64_t k = 0; k < 2 * after + 2 * (worker + 1) + 3 * after; ++k) single();
  for (int64_t k = 0; k < schedule.micro_batches() - 2 * workers + worker + 1; ++k) {
    if (k == 0 && after == 0) {  // The authors run this pair one by one, which shortens the bubble.
      single();
      single();
    } else {
      pair();
    }
    pair();
  }
  for (int64_t k = 0; k < after; ++k) {
    single();
    pair();
  }
  while (next < actions.size()) single();
  return units;
}

class Ends {
 public:
  explicit Ends(int32_t stages) : stages_(stages) {}

  void set(const Action& action, double end) { ends_[action] = end; }

  // The time at which everything that the action needs is there. Nullopt if something that it needs
  // has not ended yet.
  std::optional<double> ready(const Action& action) const {
    const auto [kind, stage, micro_batch] = action;
    if (kind == ActionKind::kWeightGradient) {
      return of({ActionKind::kInputGradient, stage, micro_batch});
    }
    if (kind == ActionKind::kForward) {
      return stage == 0 ? 0.0 : of({ActionKind::kForward, stage - 1, micro_batch});
    }
    const std::optional<double> forward = of({ActionKind::kForward, stage, micro_batch});
    if (!forward || stage + 1 == stages_) return forward;
    std::optional<double> gradient = of({ActionKind::kBackward, stage + 1, micro_batch});
    if (!gradient) gradient = of({ActionKind::kInputGradient, stage + 1, micro_batch});
    if (!gradient) return std::nullopt;
    return std::max(*forward, *gradient);
  }

 private:
  std::optional<double> of(const Action& action) const {
    const auto found = ends_.find(action);
    if (found == ends_.end()) return std::nullopt;
    return found->second;
  }

  int32_t stages_;
  std::unordered_map<Action, double> ends_;
};

struct Worker {
  std::vector<Unit> units;
  size_t next = 0;
  std::optional<double> start;
  double end = 0.0;
};

// Runs the worker's next units, as long as what they need is there. Returns false if it has run
// none.
bool advance(Worker& worker, Ends& ends) {
  bool any = false;
  for (; worker.next < worker.units.size(); ++worker.next) {
    const Unit& unit = worker.units[worker.next];
    double start = worker.end;
    for (const Action& action : unit.actions) {
      const std::optional<double> ready = ends.ready(action);
      if (!ready) return any;
      start = std::max(start, *ready);
    }
    if (!worker.start) worker.start = start;
    worker.end = start + unit.time;
    for (const Action& action : unit.actions) ends.set(action, worker.end);
    any = true;
  }
  return any;
}

}  // namespace

WorkerSpan paired_idle(int64_t workers, int64_t micro_batches, const StageCost& cost, double pair) {
  if (micro_batches < 2 * workers) {
    throw std::invalid_argument("paired_idle: DualPipe has no rules for " +
                                std::to_string(micro_batches) + " micro-batches on " +
                                std::to_string(workers) + " workers; give at least " +
                                std::to_string(2 * workers));
  }
  const Schedule schedule = dualpipe_v(workers, micro_batches);
  const ActionCost times = uniform_cost(cost);
  std::vector<Worker> all;
  for (int64_t worker = 0; worker < workers; ++worker) {
    all.emplace_back().units = units_of(schedule, worker, times, pair);
  }
  Ends ends(static_cast<int32_t>(schedule.stages()));
  for (bool any = true; any;) {
    any = false;
    for (Worker& worker : all) any = advance(worker, ends) || any;
  }
  WorkerSpan longest;
  for (const Worker& worker : all) {
    if (worker.next < worker.units.size()) {
      throw std::logic_error("paired_idle: the pairs wait for each other");
    }
    WorkerSpan span{worker.end - worker.start.value_or(0.0)};
    for (const Unit& unit : worker.units) span.work += unit.time;
    if (span.idle() > longest.idle() || longest.span == 0.0) longest = span;
  }
  return longest;
}

}  // namespace gpipe::experiments
