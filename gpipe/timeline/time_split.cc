#include "gpipe/timeline/time_split.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "gpipe/timeline/timeline_dependencies.h"

namespace gpipe {
namespace {

using internal::Dependencies;
using internal::TimelineDependencies;

bool sends_gradients(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
}

// Whether a worker runs a forward after one of its backwards.
bool alternates(const StepTimeline& step) {
  return std::any_of(step.workers.begin(), step.workers.end(), [](const auto& actions) {
    bool backward = false;
    for (const TimelineAction& timed : actions) {
      if (backward && timed.action.kind == ActionKind::kForward) return true;
      backward =
          backward || (computes(timed.action.kind) && timed.action.kind != ActionKind::kForward);
    }
    return false;
  });
}

// Says, gap by gap, to which part of the time a worker's waiting belongs.
class Waiting {
 public:
  Waiting(const std::vector<TimelineAction>& actions, bool alternates) : alternates_(alternates) {
    for (const TimelineAction& timed : actions) {
      if (timed.action.kind == ActionKind::kForward) ++forwards_left_;
    }
  }

  // Returns the part of the waiting before an action of this kind. Called for the worker's actions
  // one after the other.
  TimePart before(ActionKind kind) {
    const bool forward = kind == ActionKind::kForward;
    bool& begun = forward ? forward_ : backward_;
    const bool first = !begun && (forward || sends_gradients(kind));
    begun = begun || first;
    const bool after_forwards = forwards_left_ == 0;
    if (forward) --forwards_left_;
    if (first) return TimePart::kFill;
    return alternates_ && after_forwards ? TimePart::kDrain : TimePart::kImbalance;
  }

 private:
  const bool alternates_;
  int64_t forwards_left_ = 0;
  bool forward_ = false;   // whether the worker has begun its first forward
  bool backward_ = false;  // whether the worker has begun its first backward
};

// Returns how long, in [from, to], the action at `position`, or one on which it depends, could have
// run if its worker had not run other actions first.
int64_t queued(const StepTimeline& step, const TimelineDependencies& dependencies,
               internal::Position position, int64_t from, int64_t to) {
  int64_t sum = 0;
  while (dependencies.at(position).begin > from) {
    internal::Position last;  // of the actions that the one at `position` needs, the last to end
    int64_t ready = step.begin();
    for (const Dependencies::Edge& need : dependencies.needs(dependencies.at(position).action)) {
      const int64_t end = dependencies.at(need.position).end;
      if (last && end <= ready) continue;
      last = need.position;
      ready = end;
    }
    if (position.index > 0) {
      const int64_t before = dependencies.at({position.worker, position.index - 1}).end;
      sum += std::max<int64_t>(std::min(before, to) - std::max(ready, from), 0);
    }
    if (!last) break;
    to = std::min(to, ready);
    position = last;
  }
  return sum;
}

// Returns the action that ends last.
internal::Position last_of(const StepTimeline& step) {
  internal::Position result;
  for (size_t worker = 0; worker < step.workers.size(); ++worker) {
    const std::vector<TimelineAction>& actions = step.workers[worker];
    if (actions.empty() || actions.back().end != step.end()) continue;
    result = {static_cast<int32_t>(worker), static_cast<int32_t>(actions.size()) - 1};
  }
  return result;
}

TimeParts split_worker(const StepTimeline& step, size_t worker,
                       const TimelineDependencies& dependencies, bool alternates) {
  TimeParts parts{};
  const auto add = [&parts](TimePart part, int64_t time) {
    parts[static_cast<size_t>(part)] += time;
  };
  const std::vector<TimelineAction>& actions = step.workers[worker];
  Waiting waiting(actions, alternates);
  // `position`: the action for which the worker waits.
  const auto add_waiting = [&](TimePart part, internal::Position position, int64_t from,
                               int64_t to) {
    if (from >= to) return;
    const int64_t of_others =
        part == TimePart::kImbalance ? 0 : queued(step, dependencies, position, from, to);
    add(part, to - from - of_others);
    add(TimePart::kImbalance, of_others);
  };
  int64_t idle = step.begin();  // since when the worker has been idle
  for (const TimelineAction& timed : actions) {
    int64_t ready = idle;
    internal::Position last;  // the action whose result arrives last
    for (const Dependencies::Edge& need : dependencies.needs(timed.action)) {
      if (static_cast<size_t>(need.position.worker) == worker) continue;
      const int64_t end = dependencies.at(need.position).end;
      if (end <= ready) continue;
      ready = end;
      last = need.position;
    }
    // Times of a simulation are rounded, so a result may seem to arrive after the action has begun.
    ready = std::min(ready, timed.begin);
    add_waiting(waiting.before(timed.action.kind), last, idle, ready);
    const bool arrives = ready > idle || step.simulated;
    add(arrives ? TimePart::kTransfer : TimePart::kOverhead, timed.begin - ready);
    add(TimePart::kRecompute, timed.recompute());
    add(TimePart::kCompute, timed.end - timed.begin - timed.recompute());
    idle = timed.end;
  }
  add_waiting(TimePart::kDrain, last_of(step), idle, step.end());
  return parts;
}

}  // namespace

const char* name_of(TimePart part) {
  switch (part) {
    case TimePart::kCompute:
      return "compute";
    case TimePart::kRecompute:
      return "recompute";
    case TimePart::kFill:
      return "fill";
    case TimePart::kDrain:
      return "drain";
    case TimePart::kImbalance:
      return "imbalance";
    case TimePart::kTransfer:
      return "transfer";
    case TimePart::kOverhead:
      return "overhead";
  }
  throw std::invalid_argument("TimePart " + std::to_string(static_cast<int>(part)) +
                              " is not one of the parts of a time");
}

double TimeSplit::share(TimePart part, int64_t worker) const {
  if (worker < 0 || worker >= static_cast<int64_t>(workers.size())) {
    throw std::out_of_range("TimeSplit::share: there is no worker " + std::to_string(worker) +
                            ", the split has " + std::to_string(workers.size()) +
                            ", counted from 0");
  }
  if (time == 0) return 0.0;
  const TimeParts& parts = workers[static_cast<size_t>(worker)];
  return static_cast<double>(parts[static_cast<size_t>(part)]) / static_cast<double>(time);
}

double TimeSplit::share(TimePart part) const {
  if (workers.empty()) return 0.0;
  double sum = 0.0;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    sum += share(part, static_cast<int64_t>(worker));
  }
  return sum / static_cast<double>(workers.size());
}

double TimeSplit::utilization() const {
  return share(TimePart::kCompute) + share(TimePart::kRecompute);
}

TimeSplit split_time(const std::vector<StepTimeline>& steps, const std::optional<Routes>& routes) {
  TimeSplit split;
  for (const StepTimeline& step : steps) {
    if (!step.whole(routes ? routes->stages() : 1)) continue;
    if (split.steps == 0) split.workers.resize(step.workers.size());
    if (split.workers.size() != step.workers.size()) {
      throw std::invalid_argument("split_time: one step ran on " +
                                  std::to_string(split.workers.size()) + " workers, another on " +
                                  std::to_string(step.workers.size()) + "; split them separately");
    }
    const TimelineDependencies dependencies(step, routes);
    const bool by_turns = alternates(step);
    for (size_t worker = 0; worker < step.workers.size(); ++worker) {
      const TimeParts parts = split_worker(step, worker, dependencies, by_turns);
      for (size_t k = 0; k < parts.size(); ++k) split.workers[worker][k] += parts[k];
    }
    ++split.steps;
    split.time += step.end() - step.begin();
  }
  return split;
}

TimeSplit split_time(const StepTimeline& step, const std::optional<Routes>& routes) {
  return split_time(std::vector<StepTimeline>{step}, routes);
}

}  // namespace gpipe
