// rethrow_changed: what to do about a tensor that was changed since a graph has saved it.
#ifndef GPIPE_INTERNAL_CELL_CHANGED_SAVED_H_
#define GPIPE_INTERNAL_CELL_CHANGED_SAVED_H_

#include "gpipe/internal/model/layer.h"

namespace gpipe::internal {

// Called while the error of a backward is handled, whose last node was that layer's. Throws
// LibTorch's error for a tensor that was changed since a graph has saved it, and says that it may
// be a buffer of the layer. Throws all other errors as they are. `waited`: whether the graph had
// waited, as after the first half of a split backward or after an early recompute.
[[noreturn]] void rethrow_changed(const Layer& layer, bool waited);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_CHANGED_SAVED_H_
