#include "experiments/common/trace.h"

#include <cstddef>
#include <filesystem>
#include <vector>

#include "command/files.h"
#include "gpipe/timeline/chrome_trace.h"
#include "gpipe/timeline/time_split_text.h"
#include "gpipe/timeline/timeline_svg.h"

namespace gpipe::experiments {

std::string trace_file(const std::string& path, const std::string& variant) {
  std::filesystem::path file(path);
  const std::string extension = file.extension();
  return file.replace_filename(file.stem().string() + "." + variant + extension).string();
}

void write_trace(const std::string& path, const std::string& title, const Timeline& timeline,
                 const std::optional<Routes>& routes, std::ostream* out) {
  const std::vector<StepTimeline> steps = timeline.steps();
  if (steps.empty()) return;
  if (out != nullptr) {
    *out << title << ", the last whole step; " << to_text(split_time(steps.back(), routes))
         << std::flush;
  }
  if (std::filesystem::path(path).extension() == ".svg") {
    command::write_result(path, to_svg({{"measured", steps.back()}}, title));
    return;
  }
  TraceProcess process;
  process.name = title;
  process.steps = {steps.back()};
  process.routes = routes;
  command::write_result(path, to_chrome_trace({process}));
}

}  // namespace gpipe::experiments
