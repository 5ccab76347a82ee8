#include "balance/training_flags.h"

#include <stdexcept>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpipe/schedule/named_schedule.h"

namespace gpipe::balance {

Checkpoint parse_checkpoint(const std::string& text) {
  return checkpoint_by_name(text, "--checkpoint=" + text);
}

ScheduleChoice parse_schedule(const std::string& text) {
  try {
    return {text, schedule_by_name(text)};
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("--schedule=" + text + ": " + error.what());
  }
}

std::vector<int64_t> parse_counts(const char* flag, const std::string& text, int64_t most,
                                  std::string most_text) {
  if (most_text.empty()) most_text = std::to_string(most);
  std::vector<int64_t> counts;
  if (text.empty()) return counts;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    int64_t count = 0;
    if (!absl::SimpleAtoi(item, &count) || count < 1 || count > most) {
      throw std::invalid_argument(
          absl::StrCat("--", flag, "=", text, ": '", item, "' is no number from 1 to ", most_text));
    }
    counts.push_back(count);
  }
  return counts;
}

std::string schedule_help() {
  return "Schedule: one of " + schedule_names() +
         ". gpipe and fill-drain both run all forwards, then all backwards: gpipe from the last "
         "micro-batch to the first, fill-drain from the first to the last.";
}

}  // namespace gpipe::balance
