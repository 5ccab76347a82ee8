#include "experiments/frame/trace.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <vector>

#include "command/files.h"
#include "gpipe/timeline/chrome_trace.h"
#include "gpipe/timeline/simulate_again.h"
#include "gpipe/timeline/time_split_text.h"
#include "gpipe/timeline/timeline_svg.h"

namespace gpipe::experiments {
namespace {

// Shifts the step to begin at 0, so that the real and the simulated one stand one below the other.
StepTimeline from_zero(StepTimeline step) {
  const int64_t begin = step.begin();
  for (std::vector<TimelineAction>& worker : step.workers) {
    for (TimelineAction& action : worker) {
      for (int64_t* time :
           {&action.begin, &action.end, &action.recompute_begin, &action.recompute_end}) {
        *time -= begin;
      }
    }
  }
  return step;
}

int64_t span_of(const StepTimeline& step) { return step.end() - step.begin(); }

}  // namespace

std::string trace_file(const std::string& path, const std::string& variant) {
  std::filesystem::path file(path);
  const std::string extension = file.extension();
  return file.replace_filename(file.stem().string() + "." + variant + extension).string();
}

void write_trace(const std::string& path, const std::string& title, const Timeline& timeline,
                 const std::optional<Routes>& routes, std::ostream* out) {
  const std::vector<StepTimeline> steps = timeline.steps();
  if (steps.empty()) {
    throw std::runtime_error("no step was run, so --trace=" + path + " is not written");
  }
  const std::optional<StepTimeline> again = simulate_again(steps.back(), routes);
  if (out != nullptr) {
    *out << title << ", the last whole step; " << to_text(split_time(steps.back(), routes))
         << std::flush;
    if (again && span_of(*again) > span_of(steps.back())) {
      *out << "The simulation of the same actions takes longer than the step did: it gives each "
              "action the median of its kind, and the actions that the step waited for were "
              "faster.\n"
           << std::flush;
    }
  }
  if (std::filesystem::path(path).extension() == ".svg") {
    std::vector<TimelinePanel> panels = {{"measured", steps.back()}};
    if (again) panels.push_back({"simulated: medians of the same actions, nothing else", *again});
    command::write_result(path, to_svg(panels, title));
    return;
  }
  std::vector<TraceProcess> processes(again ? 2 : 1);
  processes[0].name = title;
  processes[0].steps = {from_zero(steps.back())};
  processes[0].routes = routes;
  if (again) {
    processes[1].name = title + ", simulated";
    processes[1].steps = {from_zero(*again)};
    processes[1].routes = routes;
  }
  command::write_result(path, to_chrome_trace(processes));
}

}  // namespace gpipe::experiments
