#include "gpipe/pipeline_setup.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpipe/schedule/named_schedule.h"
#include "text/closest.h"

namespace gpipe {
namespace {

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

}  // namespace

Schedule PipelineSetup::schedule_for(int64_t micro_batches) const {
  Schedule made = schedule.make(stages(), micro_batches);
  if (made.stages() == stages() && made.micro_batches() == micro_batches) return made;
  throw std::invalid_argument(absl::StrCat("the schedule is for ", made.stages(), " stages and ",
                                           made.micro_batches(), " micro-batches, expected ",
                                           stages(), " and ", micro_batches));
}

ScheduleChoice choice_by_name(const std::string& name, const std::string& given) {
  try {
    return {name, schedule_by_name(name)};
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(given + ": " + error.what());
  }
}

Checkpoint checkpoint_by_name(const std::string& name, const std::string& given) {
  for (const Checkpoint mode : kModes) {
    if (name == to_text(mode)) return mode;
  }
  const std::string meant = text::closest(name, names_of({std::begin(kModes), std::end(kModes)}));
  throw std::invalid_argument(given + ": give always, except_last or never" +
                              (meant.empty() ? "" : "; did you mean " + meant + "?"));
}

std::vector<std::string> names_of(const std::vector<Checkpoint>& modes) {
  std::vector<std::string> names;
  for (const Checkpoint mode : modes) names.emplace_back(to_text(mode));
  return names;
}

std::string to_text(const std::vector<Checkpoint>& modes, const char* separator) {
  std::vector<std::string> names = names_of(modes);
  const auto is_first = [&](const std::string& name) { return name == names.front(); };
  if (std::all_of(names.begin(), names.end(), is_first)) names.resize(modes.empty() ? 0 : 1);
  return absl::StrJoin(names, separator);
}

std::string to_text(const PipelineSetup& setup) {
  return absl::StrCat("chunks ", setup.chunks, ", balance [", absl::StrJoin(setup.balance, ", "),
                      "], checkpoint ", to_text(setup.checkpoints), ", ", setup.schedule.name);
}

}  // namespace gpipe
