// LateChecks: checks of recomputes whose result only the device knows yet.
//
// On the CPU, a recompute that gave other values than its forward is an error at once. On an
// accelerator, a thread that looked at the values would have to wait for the device. So the result
// of the comparison is copied to the host after the work, and the next call of the pipeline that
// finds it there throws.
#ifndef GPIPE_INTERNAL_CELL_LATE_CHECKS_H_
#define GPIPE_INTERNAL_CELL_LATE_CHECKS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <mutex>

#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

class Transfers;

// Thread-safety: all functions are thread-safe.
class LateChecks {
 public:
  // `differs`: a bool tensor on the stage's device, computed on its current stream.
  void add(int64_t stage, const at::Tensor& differs, Transfers& transfers);

  // Removes the answers that have arrived. Throws c10::Error if one of them is true.
  void look();

 private:
  struct Check {
    int64_t stage;
    Packet answer;
  };
  std::mutex mutex_;
  std::list<Check> checks_;  // guarded by mutex_
};

// Throws c10::Error that says that a recompute of the stage gave other values than its forward.
// `when`: text to insert; may be empty.
[[noreturn]] void refuse_recompute(int64_t stage, const char* when);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_LATE_CHECKS_H_
