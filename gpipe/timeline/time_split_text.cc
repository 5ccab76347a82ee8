#include "gpipe/timeline/time_split_text.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "text/counted.h"

namespace gpipe {
namespace {

constexpr int kName = 9;
constexpr int kPart = 11;

std::string row(const std::string& name, const std::function<std::string(TimePart)>& cell) {
  std::string line = absl::StrFormat("%-*s", kName, name);
  for (int k = 0; k < kTimeParts; ++k) {
    absl::StrAppendFormat(&line, "%*s", kPart, cell(static_cast<TimePart>(k)));
  }
  return line + "\n";
}

std::string percent(double share) { return absl::StrFormat("%.1f %%", share * 100); }

}  // namespace

std::string to_text(const TimeSplit& split) {
  if (split.steps == 0)
    return "no step has run to its end (over processes: in all of them, see gather_timelines)\n";
  const double milliseconds =
      static_cast<double>(split.time) / static_cast<double>(split.steps) / 1e6;
  std::string text =
      absl::StrFormat("a step: %.4g ms on %s%s, busy %s\n", milliseconds,
                      text::counted(static_cast<int64_t>(split.workers.size()), "worker"),
                      split.steps == 1 ? "" : absl::StrFormat(" (mean of %d steps)", split.steps),
                      percent(split.utilization()));
  text += row("", name_of);
  for (size_t worker = 0; worker < split.workers.size(); ++worker) {
    text += row(absl::StrCat("worker ", worker), [&](TimePart part) {
      return percent(split.share(part, static_cast<int64_t>(worker)));
    });
  }
  text += row("mean", [&](TimePart part) { return percent(split.share(part)); });
  text += row("mean, ms", [&](TimePart part) {
    return absl::StrFormat("%.4g", split.share(part) * milliseconds);
  });
  return text;
}

}  // namespace gpipe
