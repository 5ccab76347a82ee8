#include "gpipe/pipeline_setup.h"

#include <algorithm>
#include <stdexcept>

#include "gpipe/schedule/named_schedule.h"
#include "text/closest.h"

namespace gpipe {
namespace {

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

}  // namespace

ScheduleChoice choice_by_name(const std::string& name, const std::string& given) {
  try {
    return {name, schedule_by_name(name)};
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(given + ": " + error.what());
  }
}

Checkpoint checkpoint_by_name(const std::string& name, const std::string& given) {
  std::vector<std::string> names;
  for (const Checkpoint mode : kModes) {
    if (name == to_text(mode)) return mode;
    names.emplace_back(to_text(mode));
  }
  const std::string meant = text::closest(name, names);
  throw std::invalid_argument(given + ": give always, except_last or never" +
                              (meant.empty() ? "" : "; did you mean " + meant + "?"));
}

std::string to_text(const std::vector<Checkpoint>& modes) {
  std::string text;
  for (const Checkpoint mode : modes)
    text += (text.empty() ? "" : ",") + std::string(to_text(mode));
  const bool is_one = std::all_of(modes.begin(), modes.end(),
                                  [&](Checkpoint mode) { return mode == modes.front(); });
  return is_one ? text.substr(0, text.find(',')) : text;
}

std::string to_text(const PipelineSetup& setup) {
  std::string balance;
  for (const int64_t layers : setup.balance) {
    balance += (balance.empty() ? "" : ", ") + std::to_string(layers);
  }
  return "chunks " + std::to_string(setup.chunks) + ", balance [" + balance + "], checkpoint " +
         to_text(setup.checkpoints) + ", " + setup.schedule.name;
}

}  // namespace gpipe
