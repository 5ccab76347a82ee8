#include "balance/commands/training_flags.h"

#include <stdexcept>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "command/wrong_value.h"
#include "gpipe/schedule/named_schedule.h"

namespace gpipe {
namespace {

constexpr char kSearch[] = "search";  // a name of PlanOptions::schedules()

// Sets `value` to what `by_name` finds, or `error` to what it throws without the "`given`: ".
template <typename Value>
bool parsed(absl::string_view text,
            Value by_name(const std::string& name, const std::string& given), Value& value,
            std::string& error) {
  try {
    value = by_name(std::string(text), "");
    return true;
  } catch (const std::invalid_argument& wrong) {
    error = std::string(absl::StripPrefix(wrong.what(), ": "));
    return false;
  }
}

}  // namespace

bool AbslParseFlag(absl::string_view text, Checkpoint* mode, std::string* error) {
  return parsed(text, checkpoint_by_name, *mode, *error);
}

std::string AbslUnparseFlag(Checkpoint mode) { return to_text(mode); }

bool AbslParseFlag(absl::string_view text, ScheduleChoice* choice, std::string* error) {
  return parsed(text, choice_by_name, *choice, *error);
}

std::string AbslUnparseFlag(const ScheduleChoice& choice) { return choice.name; }

namespace balance {

std::vector<Checkpoint> parse_checkpoints(const std::string& text) {
  if (text == "any") return {};
  return {checkpoint_by_name(text, command::flag_text("checkpoint", text))};
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

std::string checkpoint_help() {
  return "Which micro-batches recompute their activations: always, except_last, never.";
}

std::string optimizer_help() {
  return "What updates the parameters: none, sgd, momentum, rmsprop, adagrad, adam, adamw.";
}

std::string schedule_help() {
  return "Schedule: one of " + schedule_names() +
         ". gpipe and fill-drain both run all forwards, then all backwards: gpipe from the last "
         "micro-batch to the first, fill-drain from the first to the last.";
}

std::string zero_grad_help() {
  return "Free the gradients after each step, as Optimizer::zero_grad() does.";
}

std::string deferred_batch_norm_help() {
  return "Defer batch norms, as GPipeOptions::deferred_batch_norm does: forwards also gather "
         "moments, and running statistics are updated once for each mini-batch.";
}

std::string chunks_help() {
  return "Numbers of micro-batches to choose from, such as 16,32. Default: all powers of two up to "
         "the batch, and the batch; with batch norms no number that makes a micro-batch of one "
         "row.";
}

std::string latency_help() {
  return "Microseconds that a transfer takes in addition to its bytes.";
}

}  // namespace balance
}  // namespace gpipe
