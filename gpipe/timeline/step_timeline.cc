#include "gpipe/timeline/step_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

namespace gpipe {
namespace {

constexpr double kMostNanoseconds = 3.2e18;  // a century; int64_t holds nearly three

int64_t nanoseconds(double time, double seconds) {
  const double result = time * seconds * 1e9;
  if (!(result <= kMostNanoseconds)) {
    throw std::invalid_argument("to_timeline: a time of " + std::to_string(time) + " units of " +
                                std::to_string(seconds) +
                                " seconds is more than a century; give a smaller unit");
  }
  return std::llround(result);
}

}  // namespace

int64_t StepTimeline::begin() const {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const std::vector<TimelineAction>& actions : workers) {
    if (!actions.empty()) first = std::min(first, actions.front().begin);
  }
  return first == std::numeric_limits<int64_t>::max() ? 0 : first;
}

int64_t StepTimeline::end() const {
  int64_t last = std::numeric_limits<int64_t>::min();
  for (const std::vector<TimelineAction>& actions : workers) {
    if (!actions.empty()) last = std::max(last, actions.back().end);
  }
  return last == std::numeric_limits<int64_t>::min() ? 0 : last;
}

bool StepTimeline::failed() const {
  return std::any_of(workers.begin(), workers.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const TimelineAction& action) { return action.failed; });
  });
}

bool StepTimeline::whole(int64_t stages) const {
  if (failed() || unfinished) return false;
  enum Half : uint8_t { kForward, kInputs, kWeights, kHalves };
  // [stage][half]: the micro-batches that ran.
  std::map<int32_t, std::array<std::set<int32_t>, kHalves>> ran;
  for (const std::vector<TimelineAction>& actions : workers) {
    for (const TimelineAction& timed : actions) {
      auto& halves = ran[timed.action.stage];
      const int32_t m = timed.action.micro_batch;
      const ActionKind kind = timed.action.kind;
      if (kind == ActionKind::kForward) halves[kForward].insert(m);
      if (kind == ActionKind::kBackward || kind == ActionKind::kInputGradient)
        halves[kInputs].insert(m);
      if (kind == ActionKind::kBackward || kind == ActionKind::kWeightGradient) {
        halves[kWeights].insert(m);
      }
    }
  }
  if (ran.empty()) return false;
  // Stages are counted from 0. If a number is missing, that stage ran nothing, and the step is not
  // whole.
  if (static_cast<int64_t>(ran.size()) != std::max<int64_t>(stages, ran.rbegin()->first + 1)) {
    return false;
  }
  const auto& first = ran.begin()->second;
  return std::all_of(ran.begin(), ran.end(), [&](const auto& of_stage) {
    const auto& [forward, inputs, weights] = of_stage.second;
    // A timeline of forwards only, or of backwards only (of a call of forward()), has only
    // forwards, or only backwards.
    return of_stage.second == first && inputs == weights &&
           (inputs.empty() || forward.empty() || inputs == forward);
  });
}

void move_clock(StepTimeline& step, int64_t by) {
  for (std::vector<TimelineAction>& actions : step.workers) {
    for (TimelineAction& action : actions) {
      action.begin += by;
      action.end += by;
      action.recompute_begin += by;
      action.recompute_end += by;
    }
  }
}

StepTimeline to_timeline(const Simulation& simulation, double seconds,
                         const ActionCost& recompute) {
  if (!std::isfinite(seconds) || seconds <= 0) {
    throw std::invalid_argument("to_timeline: a unit of " + std::to_string(seconds) +
                                " seconds was given, expected a finite number above 0");
  }
  StepTimeline timeline;
  timeline.simulated = true;
  for (const std::vector<TimedAction>& actions : simulation.workers) {
    std::vector<TimelineAction>& of_worker = timeline.workers.emplace_back();
    for (const TimedAction& timed : actions) {
      TimelineAction action{timed.action, nanoseconds(timed.start, seconds),
                            nanoseconds(timed.end, seconds)};
      const double again = recompute ? recompute(timed.action) : 0.0;
      // The tolerance is for rounding, because an action's end is a sum.
      if (!(again >= 0.0 && again <= (timed.end - timed.start) * (1 + 1e-9) + 1e-12)) {
        throw std::invalid_argument("to_timeline: the recompute of " + timed.action.to_text() +
                                    " takes " + std::to_string(again) + ", expected 0 to " +
                                    std::to_string(timed.end - timed.start) +
                                    ", the time of the action");
      }
      action.recompute_begin = action.begin;
      action.recompute_end = std::min(action.end, nanoseconds(timed.start + again, seconds));
      of_worker.push_back(action);
    }
  }
  return timeline;
}

}  // namespace gpipe
