#include "balance/training_flags.h"

#include <stdexcept>

#include "gpipe/schedule/sequential.h"

namespace gpipe::balance {

Checkpoint parse_checkpoint(const std::string& text) {
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    if (text == to_text(mode)) return mode;
  }
  throw std::invalid_argument("--checkpoint=" + text + ": give always, except_last or never");
}

ScheduleGenerator parse_schedule(const std::string& text) {
  if (text == "gpipe") return Schedule::gpipe;
  if (text == "1f1b") return Schedule::one_f_one_b;
  if (text == "sequential") return sequential;
  throw std::invalid_argument("--schedule=" + text + ": give gpipe, 1f1b or sequential");
}

}  // namespace gpipe::balance
