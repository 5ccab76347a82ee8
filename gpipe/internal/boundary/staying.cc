#include "gpipe/internal/boundary/staying.h"

#include <c10/util/Exception.h>

namespace gpipe::internal {

void ReadOnlyInputs::refuse(LayerName layer) {
  TORCH_CHECK(false, layer(),
              " changed a tensor in place that also went another way: it left its stage as "
              "several values or skips over the same memory, or it is a parameter, a buffer or an "
              "input of all micro-batches (GPipeOptions::shared_inputs). "
              "The gradient that comes back the other way would miss the change. Hand on a "
              "clone(), make the layer not in-place, or move the cut");
}

void check_kept(int64_t stage, const std::vector<Packet>& inputs, const char* when,
                LayerName layer) {
  for (const Packet& packet : inputs) {
    for (const Item& item : packet.items) {
      TORCH_CHECK(!item.is_changed(), layer(), " changed an input of stage ", stage, " in place ",
                  when,
                  "; its recompute would start from the changed values and give wrong gradients. "
                  "Make the layer not in-place, put it behind another layer of its partition by "
                  "moving the cut, or use Checkpoint::kNever");
    }
  }
}

}  // namespace gpipe::internal
