#include "gpipe/options.h"

namespace gpipe {

std::ostream& operator<<(std::ostream& out, const Failure& failure) {
  const char* const what = failure.recompute  ? "recompute"
                           : failure.backward ? "backward"
                                              : "forward";
  const std::string stage = "stage " + std::to_string(failure.stage);
  out << what << " of " << stage << ", micro-batch " << failure.micro_batch;
  if (!failure.layer.empty() && failure.layer != stage) out << ", " << failure.layer;
  if (!failure.layer_type.empty()) out << ", a " << failure.layer_type;
  if (failure.out_of_memory) {
    const OutOfMemory& memory = *failure.out_of_memory;
    out << " (" << memory.device << " was asked for " << memory.asked << " bytes; " << memory.free
        << " of " << memory.total << " were free)";
  }
  return out;
}

}  // namespace gpipe
