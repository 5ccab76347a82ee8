// training_flags: what the values of the commands' flags --checkpoint, --schedule and --optimizer
// mean.
#ifndef BALANCE_TRAINING_FLAGS_H_
#define BALANCE_TRAINING_FLAGS_H_

#include <string>

#include "balance/memory_plan.h"
#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// Each throws std::invalid_argument for any other text.

// "always", "except_last", "never"
Checkpoint parse_checkpoint(const std::string& text);
// "1f1b", "gpipe"
ScheduleGenerator parse_schedule(const std::string& text);
// "none", "sgd", "momentum" (SGD with it), "rmsprop", "adagrad", "adam", "adamw". With LibTorch's
// defaults; what a plan needs of an optimizer is what it keeps. None: null.
MakeOptimizer parse_optimizer(const std::string& text);

}  // namespace gpipe::balance

#endif  // BALANCE_TRAINING_FLAGS_H_
