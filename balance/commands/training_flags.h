// training_flags: parses the commands' flags --checkpoint, --schedule and --chunks.
#ifndef BALANCE_COMMANDS_TRAINING_FLAGS_H_
#define BALANCE_COMMANDS_TRAINING_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe::balance {

// Each parser throws std::invalid_argument for any other text, and suggests what was probably
// meant.

// Reads "always", "except_last" or "never".
Checkpoint parse_checkpoint(const std::string& text);
// A name of schedule_by_name(). Call it once: later code uses the choice. The choice's generator
// throws if the number of stages is not a multiple of the schedule's stages on a worker.
ScheduleChoice parse_schedule(const std::string& text);
// Reads a text like "1f1b,search": names for PlanOptions::schedules(), separated by commas. An
// empty text gives no names. Also throws for "search" alone, because a search starts from a
// schedule.
std::vector<std::string> parse_schedules(const std::string& text);

// "8,16": numbers from 1 to `most`, separated by commas; empty for an empty text. Throws
// std::invalid_argument with the flag and the wrong item. `most_text` describes `most` in the
// message, such as "the 8 rows of --batch". Default: the number.
std::vector<int64_t> parse_counts(const char* flag, const std::string& text, int64_t most,
                                  std::string most_text = "");

// The help of --schedule, with all names.
std::string schedule_help();
// The help of --deferred_batch_norm.
std::string deferred_batch_norm_help();

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_TRAINING_FLAGS_H_
