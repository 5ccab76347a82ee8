// GroupSums: the gradients of a step, added up group by group of its micro-batches
// (GPipeOptions::groups), in place of the leaves' .grad.
#ifndef GPIPE_INTERNAL_BACKWARD_GROUP_SUMS_H_
#define GPIPE_INTERNAL_BACKWARD_GROUP_SUMS_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/tree_sum.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {

// The gradient sums of one stage.
//
// Thread-safety: none; the stage's worker uses the object in a run, and the caller afterwards.
class GroupSums {
 public:
  struct Leaf {
    NodePtr accumulator;
    at::Tensor leaf;
    at::Tensor sum;  // the sum over all groups
  };

  // The tensor in which a leaf's gradients of this group are added up. For each leaf, groups must
  // ascend. The tensor stays at its address until take().
  at::Tensor* sum_of(const NodePtr& accumulator, const at::Tensor& leaf, int64_t group) {
    auto& place = places_[accumulator.get()];
    if (place == nullptr) {
      entries_.push_back(std::make_unique<Entry>(Entry{accumulator, leaf, group, {}, {}}));
      place = entries_.back().get();
    }
    if (place->group != group) {
      place->groups.add(place->group, std::move(place->current));
      place->current = at::Tensor();
      place->group = group;
    }
    return &place->current;
  }

  // Removes and returns the leaves that have received a gradient, in the order in which they were
  // first reached.
  std::vector<Leaf> take() {
    std::vector<Leaf> leaves;
    for (const auto& entry : entries_) {
      entry->groups.add(entry->group, std::move(entry->current));
      at::Tensor sum = entry->groups.take();
      if (!sum.defined()) continue;
      leaves.push_back({std::move(entry->accumulator), std::move(entry->leaf), std::move(sum)});
    }
    places_.clear();
    entries_.clear();
    return leaves;
  }

 private:
  struct Entry {
    NodePtr accumulator;
    at::Tensor leaf;
    int64_t group;
    at::Tensor current;  // sum of the current group
    TreeSum groups;      // sum of the groups before it
  };

  std::unordered_map<const torch::autograd::Node*, Entry*> places_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_GROUP_SUMS_H_
