// training_flags: what the values of the commands' flags --checkpoint, --schedule and --chunks
// mean.
#ifndef BALANCE_COMMANDS_TRAINING_FLAGS_H_
#define BALANCE_COMMANDS_TRAINING_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe::balance {

// Each throws std::invalid_argument for any other text, with the one that was probably meant.

// "always", "except_last", "never"
Checkpoint parse_checkpoint(const std::string& text);
// A name of schedule_by_name(), to be read once: what runs takes the choice. Its generator throws
// where the stages are no multiple of those that the schedule has on a worker.
ScheduleChoice parse_schedule(const std::string& text);
// "1f1b,search": names for PlanOptions::schedules(), separated by commas; none for an empty text.
// Also throws for a search alone, which has no schedule to go on from.
std::vector<std::string> parse_schedules(const std::string& text);

// "8,16": numbers from 1 to `most`, separated by commas; none for an empty text. Throws
// std::invalid_argument that names the flag and what is no such number. `most_text`: `most` in the
// message, such as "the 8 rows of --batch". Default: the number.
std::vector<int64_t> parse_counts(const char* flag, const std::string& text, int64_t most,
                                  std::string most_text = "");

// For --help: lists the names.
std::string schedule_help();
// For --help, of --deferred_batch_norm.
std::string deferred_batch_norm_help();

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_TRAINING_FLAGS_H_
