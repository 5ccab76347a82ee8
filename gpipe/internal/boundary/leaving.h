// Leaving: the outputs of a cell, from what its layers give to the packets that are sent.
#ifndef GPIPE_INTERNAL_BOUNDARY_LEAVING_H_
#define GPIPE_INTERNAL_BOUNDARY_LEAVING_H_

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/boundary/boundary.h"
#include "gpipe/internal/boundary/layers_result.h"
#include "gpipe/internal/boundary/staying.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

// Memory of outputs that a stage has handed over in this run, and the memory's version at that
// time. A layer that reuses such memory would change an output on its way.
//
// Thread-safety: none.
class HandedOver {
 public:
  // Called before the first cell of a run.
  void clear() { memory_.clear(); }

  // Throws c10::Error if the tensor is in memory that left before and has changed since. Checks
  // only tensors that require a gradient, because other tensors leave as a copy if their memory may
  // change (LeavingCopies).
  void check(const at::Tensor& tensor, LayerName layer);

 private:
  // The pointer is weak, so it does not keep the memory, but no other storage gets the same
  // address.
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t version;
  };
  absl::flat_hash_map<const c10::StorageImpl*, Memory> memory_;
};

// Returns the packets to send, one for each output port, with no graph behind them. A tensor that
// leaves several times is one tensor in all of its packets. Other tensors over one memory are
// marked, so that the first stage that gets the memory does not change it. A tensor that a layer or
// the caller may still change leaves as a copy. `layer`: the layer that ran last, for messages.
std::vector<Packet> leave(const Boundary& boundary, const CellPlan& plan,
                          const LayersResult& result, HandedOver& handed_over, LayerName layer);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BOUNDARY_LEAVING_H_
