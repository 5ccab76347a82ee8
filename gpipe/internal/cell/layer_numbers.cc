#include "gpipe/internal/cell/layer_numbers.h"

#include <ATen/record_function.h>

#include <algorithm>

namespace gpipe::internal {

void LayerNumbers::begin() {
  thread_ = at::RecordFunction::currentThreadId();
  begin_ = at::sequence_number::peek();
}

void LayerNumbers::begin_loss(size_t layers) {
  begin();
  ends_.assign(layers, 0);  // every sequence number counts as behind the layers
  has_layers_ = false;
  has_loss_ = true;
}

int64_t LayerNumbers::last() const {
  return static_cast<int64_t>(ends_.size()) - (has_loss_ ? 0 : 1);
}

int64_t LayerNumbers::before() const { return has_layers_ ? -1 : last(); }

int64_t LayerNumbers::layer_of(uint64_t sequence_nr) const {
  if (sequence_nr < begin_) return before();
  if (undivided_ && sequence_nr < ends_.front()) return before();
  return std::upper_bound(ends_.begin(), ends_.end(), sequence_nr) - ends_.begin();
}

int64_t LayerNumbers::reached(const WalkProgress& progress) const {
  // The number of a node that comes from outside the cell may be another thread's, so the layer is
  // at most the last one.
  if (progress.node != WalkProgress::kNone) return std::min(last(), layer_of(progress.node));
  // The walk got here from outside the graph. The layer is known only if the graph has a loss, or a
  // single layer.
  const bool only_one = has_loss_ || last() == 0;
  return !progress.found && only_one ? last() : before();
}

LayerNumbers::Place LayerNumbers::place_of(uint64_t sequence_nr) const {
  if (sequence_nr < begin_) return {0, 0};
  const int64_t layer = std::max<int64_t>(layer_of(sequence_nr), 0);
  const uint64_t start = layer == 0 ? begin_ : std::max(begin_, ends_[layer - 1]);
  return {layer, sequence_nr - start + 1};
}

}  // namespace gpipe::internal
