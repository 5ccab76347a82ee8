#include "balance/training_flags.h"

#include <stdexcept>

#include "gpipe/schedule/named_schedule.h"

namespace gpipe::balance {

Checkpoint parse_checkpoint(const std::string& text) {
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    if (text == to_text(mode)) return mode;
  }
  throw std::invalid_argument("--checkpoint=" + text + ": give always, except_last or never");
}

ScheduleGenerator parse_schedule(const std::string& text) {
  try {
    return schedule_by_name(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("--schedule=" + text + ": " + error.what());
  }
}

std::string schedule_help() { return "Schedule: one of " + schedule_names() + "."; }

}  // namespace gpipe::balance
