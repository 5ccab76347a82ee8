// Timeline: records when the workers of a pipeline really ran which actions.
#ifndef GPIPE_TIMELINE_TIMELINE_H_
#define GPIPE_TIMELINE_TIMELINE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/runtime/observer.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/timeline/step_timeline.h"

namespace gpipe {

// A record of steps, to be written as a trace, split into parts (time_split.h) or drawn
// (timeline_svg.h).
//
// Workers do not wait for each other to record: each worker has a buffer of its own. A record takes
// some 60 bytes for each action, until clear().
//
// Thread-safety: thread-safe. While a step runs, steps() has the actions that have ended so far.
//
// Example:
//   gpipe::Timeline timeline;
//   pipe->step({input}, {target}, loss_fn, gpipe::StepOptions().on_event(timeline.observer()));
//   timeline.write_chrome_trace("trace.json", pipe->routes());  // for ui.perfetto.dev
//   std::cout << gpipe::to_text(gpipe::split_time(timeline.steps(), pipe->routes()));
class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(Timeline&&) noexcept;
  Timeline& operator=(Timeline&&) noexcept;

  // The observer for StepOptions::on_event, of one step or of many, of one pipeline or of several.
  // The observer may outlive the timeline.
  Observer observer();

  // The recorded steps, in the order in which they began. The clock of all of them begins with the
  // first step. A step is left out as long as none of its actions has ended.
  std::vector<StepTimeline> steps() const;

  // The steps of steps(), with the times of std::chrono::steady_clock since its epoch.
  std::vector<StepTimeline> steps_of_steady_clock() const;

  // Forgets what was recorded.
  void clear();

  // See chrome_trace.h. Throws std::runtime_error if the file cannot be written.
  void write_chrome_trace(const std::string& path,
                          const std::optional<Routes>& routes = std::nullopt) const;

 private:
  class Log;
  std::shared_ptr<Log> log_;
};

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_TIMELINE_H_
