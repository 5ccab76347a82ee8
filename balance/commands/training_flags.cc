#include "balance/commands/training_flags.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "command/wrong_value.h"
#include "gpipe/schedule/named_schedule.h"

namespace gpipe::balance {
namespace {

constexpr char kSearch[] = "search";  // a name of PlanOptions::schedules()

}  // namespace

Checkpoint parse_checkpoint(const std::string& text) {
  return checkpoint_by_name(text, command::flag_text("checkpoint", text));
}

ScheduleChoice parse_schedule(const std::string& text) {
  return choice_by_name(text, command::flag_text("schedule", text));
}

std::vector<std::string> parse_schedules(const std::string& text) {
  std::vector<std::string> names;
  if (text.empty()) return names;
  const std::string given = command::flag_text("schedules", text);
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    names.emplace_back(absl::StripAsciiWhitespace(item));
    if (names.back() != kSearch) (void)choice_by_name(names.back(), given);
  }
  if (names == std::vector<std::string>{kSearch}) {
    throw command::wrong_value(
        "schedules", text,
        "a search goes on from a schedule; give one beside it, such as 1f1b,search");
  }
  return names;
}

std::vector<int64_t> parse_counts(const char* flag, const std::string& text, int64_t most,
                                  std::string most_text) {
  if (most_text.empty()) most_text = std::to_string(most);
  std::vector<int64_t> counts;
  if (text.empty()) return counts;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    int64_t count = 0;
    if (!absl::SimpleAtoi(item, &count) || count < 1 || count > most) {
      throw command::wrong_value(
          flag, text, absl::StrCat("'", item, "' is not a number from 1 to ", most_text));
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

std::string deferred_batch_norm_help() {
  return "Defer batch norms, as GPipeOptions::deferred_batch_norm does: forwards also gather "
         "moments, "
         "and running statistics are updated once for each mini-batch.";
}

}  // namespace gpipe::balance
