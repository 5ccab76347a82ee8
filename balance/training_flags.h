// training_flags: what the values of the commands' flags --checkpoint and --schedule mean.
#ifndef BALANCE_TRAINING_FLAGS_H_
#define BALANCE_TRAINING_FLAGS_H_

#include <string>

#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// Each throws std::invalid_argument for any other text, with the one that was probably meant.

// "always", "except_last", "never"
Checkpoint parse_checkpoint(const std::string& text);
// A name of schedule_by_name(). The generator throws where the stages are no multiple of those that
// the schedule has on a worker.
ScheduleGenerator parse_schedule(const std::string& text);

// For --help: lists the names.
std::string schedule_help();

}  // namespace gpipe::balance

#endif  // BALANCE_TRAINING_FLAGS_H_
