// training_flags: types, parsers and help of flags that several commands have: --checkpoint,
// --schedule, --chunks and others.
#ifndef BALANCE_COMMANDS_TRAINING_FLAGS_H_
#define BALANCE_COMMANDS_TRAINING_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gpipe/checkpoint.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe {

// Make a Checkpoint and a ScheduleChoice types of flags, which command::read_flags() checks:
//   ABSL_FLAG(gpipe::ScheduleChoice, schedule, {}, gpipe::balance::schedule_help());
bool AbslParseFlag(absl::string_view text, Checkpoint* mode, std::string* error);
std::string AbslUnparseFlag(Checkpoint mode);
bool AbslParseFlag(absl::string_view text, ScheduleChoice* choice, std::string* error);
std::string AbslUnparseFlag(const ScheduleChoice& choice);

namespace balance {

// Each parser throws std::invalid_argument for a text that it does not accept, and suggests what
// was probably meant.

// Reads the modes to choose from: one of "always", "except_last" and "never", or "any" for none in
// particular.
std::vector<Checkpoint> parse_checkpoints(const std::string& text);
// Reads a text like "1f1b,search": names for PlanOptions::schedules(), separated by commas. An
// empty text gives no names. Also throws for "search" alone, because a search starts from a
// schedule.
std::vector<std::string> parse_schedules(const std::string& text);

// "8,16": numbers from 1 to `most`, separated by commas; empty for an empty text. Throws
// std::invalid_argument with the flag and the wrong item. `most_text` describes `most` in the
// message, such as "the 8 rows of --batch". Default: the number.
std::vector<int64_t> parse_counts(const char* flag, const std::string& text, int64_t most,
                                  std::string most_text = "");

// The help of flags that several commands have; that of --schedule has all names.
std::string checkpoint_help();
std::string optimizer_help();
std::string schedule_help();
std::string zero_grad_help();
std::string deferred_batch_norm_help();
std::string chunks_help();  // of numbers to choose from
std::string latency_help();

}  // namespace balance
}  // namespace gpipe

#endif  // BALANCE_COMMANDS_TRAINING_FLAGS_H_
