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
  const bool picture = std::filesystem::path(path).extension() == ".svg";
  if (out != nullptr) {
    *out << title << ", the last whole step; " << to_text(split_time(steps.back(), routes))
         << std::flush;
  }
  command::write_result(path, picture ? to_svg({{"measured", steps.back()}}, title)
                                      : to_chrome_trace({{title, {steps.back()}, routes}}));
}

}  // namespace gpipe::experiments
