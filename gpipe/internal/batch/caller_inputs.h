// CallerInputs: the tensors that the caller gave for a mini-batch, and changes made to them.
#ifndef GPIPE_INTERNAL_BATCH_CALLER_INPUTS_H_
#define GPIPE_INTERNAL_BATCH_CALLER_INPUTS_H_

#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/version_mark.h"

namespace gpipe::internal {

// Cuts micro-batches out of the caller's tensors, over the same memory.
//
// Inputs that are shared go whole to each micro-batch.
//
// Guarantees: each micro-batch has version counters of its own. A first layer that works in place
// on one micro-batch leaves the others as they were, as in a loop over the micro-batches. The
// caller's own counters are kept up to date: a layer's change is counted there after the forward,
// and a change by the caller between forward and backward is counted for the micro-batches before
// the backward.
//
// Thread-safety: micro_batch() may be called for different micro-batches at the same time;
// everything else must be called alone.
class CallerInputs {
 public:
  CallerInputs() = default;
  // `whole`: the inputs as given. `record`: whether gradients will be asked for. `shared`: numbers
  // of inputs, GPipeOptions::shared_inputs.
  CallerInputs(Packet whole, MiniBatch mini_batch, bool record,
               const std::vector<int64_t>& shared = {});

  Packet micro_batch(int64_t i) const;

  // Called after the forward. Releases the tensors, and counts in the caller's counters what layers
  // changed in place. Throws c10::ValueError if a layer changed a shared input, because
  // micro-batches then saw different values, depending on the order in which they ran.
  void finish_forward();

  // Called before a backward. Returns the number of an input that the caller has changed in place
  // since finish_forward() or the previous call. From then on autograd notices the change if a cell
  // has saved the input.
  std::optional<size_t> changed_by_caller();

  // The gradient of an input: its micro-batches' gradients joined, or, if it is shared, summed.
  at::Tensor join_gradients(const std::vector<Packet>& gradients, size_t input) const;

 private:
  // Inputs over the same storage have one version counter.
  struct Memory {
    const c10::StorageImpl* storage;
    size_t input;  // the first input over this memory
    VersionMark of_caller;
    std::vector<c10::VariableVersion> of_micro_batches;
  };

  Packet whole_;
  MiniBatch mini_batch_;
  bool record_ = false;
  std::vector<bool> shared_;    // [input]
  std::vector<int> memory_of_;  // [input]; -1: no version counter
  std::vector<Memory> memories_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BATCH_CALLER_INPUTS_H_
