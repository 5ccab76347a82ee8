// Sinks: tensors, by packet, whose gradients end in one GradientSink.
#ifndef GPIPE_INTERNAL_CELL_SINKS_H_
#define GPIPE_INTERNAL_CELL_SINKS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <vector>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

// Thread-safety: none.
class Sinks {
 public:
  // Adds the next tensor of a packet. If `wanted`, its gradient ends here: see
  // GradientSink::attach().
  void add(size_t packet, const at::Tensor& tensor, bool wanted);

  // Removes and returns the gradients that have arrived, so each is returned once. There are as
  // many items as were added; an item is undefined if its gradient has not arrived.
  std::vector<Packet> take();

  // The node at which the gradients end; null if no gradient is wanted.
  const GradientSink* node() const { return sink_.get(); }

 private:
  NodePtrTo<GradientSink> sink_;
  c10::SmallVector<c10::SmallVector<int, 2>, 1> places_;  // [packet][item] index in the sink, or -1
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_SINKS_H_
