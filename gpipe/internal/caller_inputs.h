// CallerInputs: the tensors that the caller gave for a mini-batch, and what becomes of them.
#ifndef GPIPE_INTERNAL_CALLER_INPUTS_H_
#define GPIPE_INTERNAL_CALLER_INPUTS_H_

#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/internal/mini_batch.h"
#include "gpipe/internal/packet.h"

namespace gpipe::internal {

// Cuts micro-batches out of the caller's tensors, over the same memory.
//
// Each micro-batch has version counters of its own: a first layer that works in place on one of
// them leaves the others as they were, as in a loop over the micro-batches. The caller's own
// counters are kept in step: a layer's change is counted there after the forward, and a change by
// the caller between forward and backward is counted for the micro-batches before the backward.
//
// Thread-safety: micro_batch() for different ones at the same time; everything else alone.
class CallerInputs {
 public:
  CallerInputs() = default;
  // `whole`: the inputs as given; `record`: gradients will be asked for.
  CallerInputs(Packet whole, MiniBatch mini_batch, bool record);

  Packet micro_batch(int64_t i) const;

  // After the forward: lets go of the tensors. Counts for the caller what layers changed in place.
  void finish_forward();

  // Before a backward: the number of an input that the caller changed in place since
  // finish_forward(). From then on autograd notices where a cell has kept it.
  std::optional<size_t> changed_by_caller();

 private:
  // Inputs over the same storage count their versions together.
  struct Memory {
    const c10::StorageImpl* storage;
    size_t input;  // the first one over it
    c10::VariableVersion of_caller;
    uint32_t seen = 0;
    std::vector<c10::VariableVersion> of_micro_batches;
  };

  Packet whole_;
  MiniBatch mini_batch_;
  bool record_ = false;
  std::vector<int> memory_of_;  // [input]; -1: it keeps no versions
  std::vector<Memory> memories_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALLER_INPUTS_H_
