// Layout: the skips of a model that is split into partitions.
#ifndef SKIP_LAYOUT_H_
#define SKIP_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "skip/tracker.h"

namespace torch::nn {
class Sequential;
}  // namespace torch::nn

namespace gpipe::skip {

// One skip, from the layer that stashes to the layer that pops. Layers are counted as in `balance`:
// top-level layers from 0. A nested skippable counts as the top-level layer around it.
struct SkipEdge {
  Key key;
  int32_t source_layer;
  int32_t target_layer;
  int32_t source_partition;
  int32_t target_partition;
};

bool operator==(const SkipEdge& a, const SkipEdge& b);

// Where the skips of a model go when it is split by a balance. An immutable value.
class Layout {
 public:
  // Throws c10::TypeError if the skips do not pair up (`verify_skippables`), c10::ValueError if
  // `balance` has a block that is not positive or does not sum up to the number of layers.
  static Layout inspect(const torch::nn::Sequential& module, const std::vector<int64_t>& balance);

  // All skips. This list and crossing() are sorted by target partition, source partition, namespace
  // and name.
  const std::vector<SkipEdge>& edges() const { return edges_; }
  // The edges between different partitions, the only ones that need a transfer.
  const std::vector<SkipEdge>& crossing() const { return crossing_; }

  // One line per edge: "'skip': layer 0 (partition 0) -> layer 5 (partition 2)".
  std::string to_text() const;

 private:
  std::vector<SkipEdge> edges_;
  std::vector<SkipEdge> crossing_;
};

}  // namespace gpipe::skip

#endif  // SKIP_LAYOUT_H_
