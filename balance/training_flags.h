// training_flags: what the values of the commands' flags --checkpoint and --schedule mean.
#ifndef BALANCE_TRAINING_FLAGS_H_
#define BALANCE_TRAINING_FLAGS_H_

#include <string>

#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// Each throws std::invalid_argument for any other text.

// "always", "except_last", "never"
Checkpoint parse_checkpoint(const std::string& text);
// "1f1b", "gpipe", "sequential"
ScheduleGenerator parse_schedule(const std::string& text);

}  // namespace gpipe::balance

#endif  // BALANCE_TRAINING_FLAGS_H_
