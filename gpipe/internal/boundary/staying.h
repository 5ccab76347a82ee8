// Staying: inputs of a cell that its layers must leave as they are.
#ifndef GPIPE_INTERNAL_BOUNDARY_STAYING_H_
#define GPIPE_INTERNAL_BOUNDARY_STAYING_H_

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/version_mark.h"

namespace gpipe::internal {

// Returns the layer's name for messages, like "layer 5 ('relu')".
using LayerName = c10::function_ref<std::string()>;

// Inputs that share their memory with other tensors, which would miss a change or its gradient.
class ReadOnlyInputs {
 public:
  // Adds an input. Changes of a tensor that was made in inference mode are not noticed, because
  // such tensors do not count changes.
  void watch(const at::Tensor& tensor) { watched_.emplace_back(tensor); }

  // Throws c10::Error if a layer has changed one of the inputs in place.
  void check(LayerName layer) const {
    for (const VersionMark& mark : watched_) {
      if (mark.is_changed()) refuse(layer);
    }
  }

 private:
  [[noreturn]] static void refuse(LayerName layer);

  c10::SmallVector<VersionMark, 2> watched_;
};

// Throws c10::Error if one of the inputs that a checkpointed cell of this stage keeps for its
// recompute was changed in place. `when`: "while it is checkpointed", say.
void check_kept(int64_t stage, const std::vector<Packet>& inputs, const char* when,
                LayerName layer);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BOUNDARY_STAYING_H_
