// Packet: the tensors that one route carries for one micro-batch, forward or backward.
#ifndef GPIPE_INTERNAL_TENSORS_PACKET_H_
#define GPIPE_INTERNAL_TENSORS_PACKET_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {

// The C++ type in which a layer takes or returns its tensors.
enum class ValueKind : uint8_t { kTensor, kTensors, kTuple2, kTuple3, kTuple4 };

struct Item {
  at::Tensor tensor;  // may be undefined
  // Forward: whether a gradient is to come back for this tensor. The tensor itself is detached, so
  // no graph crosses the boundary of a stage. A tensor that leaves a stage twice is the same object
  // in both items.
  bool needs_grad = false;
  // Forward: the tensor must not be changed in place. Another tensor has the same memory, and the
  // gradient of that tensor would miss a change made behind the boundary.
  bool read_only = false;
  // Forward: the packets of this boundary have another tensor with the same memory.
  bool shared = false;
  // Forward: version_of(tensor) when the tensor was handed over.
  int64_t version = 0;
  // Forward: the tensor is an input of all micro-batches (GPipeOptions::shared_inputs), which no
  // stage may change. So it leaves a stage without a copy.
  bool constant = false;

  void mark_version() { version = version_of(tensor); }
  // Whether the tensor was changed in place since it was marked: on its way, or where it stays.
  bool is_changed() const { return version_of(tensor) != version; }
};

// How the elements of a copy lie in its memory.
struct CopyLayout {
  // The original's sizes and strides, with each element once, the largest stride first.
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides_once;
  c10::SmallVector<int64_t, 6> strides;  // the copy's strides, for the tensor's dimensions
  int64_t extent = 0;                    // elements of the copy, with gaps, up to its last one
  int64_t offset = 0;                    // elements from the beginning of a line to the copy
  bool has_gaps = false;                 // whether the copy has gaps between its elements
};

struct Packet {
  ValueKind kind = ValueKind::kTensor;
  c10::SmallVector<Item, 2> items;
  // Accelerators: the events that the consumer's stream has to wait for (see transfer.h). Empty on
  // the CPU.
  std::vector<std::shared_ptr<c10::Event>> ready;
  // For packets to the host: items that get gaps between their elements after the elements have
  // arrived.
  struct Gaps {
    size_t item;
    CopyLayout layout;
  };
  std::vector<Gaps> gaps;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_PACKET_H_
