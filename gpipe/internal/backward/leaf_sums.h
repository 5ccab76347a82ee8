// LeafSums: gradients of leaves that are not accumulated where they arise.
//
// A parameter that several stages use, or that belongs to no stage (e.g. a parameter of the loss),
// gets its gradient once per micro-batch, as in the plain model. The stages' terms are added up
// from the last use to the first, and the first stage accumulates the sum. Otherwise each stage
// would add to the parameter's .grad when its backward comes to the parameter. Then the order would
// differ from run to run, and the parameter's hooks would see single terms.
#ifndef GPIPE_INTERNAL_BACKWARD_LEAF_SUMS_H_
#define GPIPE_INTERNAL_BACKWARD_LEAF_SUMS_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {

// The gradient sums of one micro-batch.
//
// Thread-safety: none. The stages use it one after another, because the backward of each stage
// waits for the backward of the next stage.
class LeafSums {
 public:
  struct Entry {
    NodePtr accumulator;
    int64_t owner;   // the stage that accumulates the sum
    at::Tensor sum;  // undefined as long as no term has arrived
  };

  // The tensor in which the terms of a leaf are added up. The pointer stays valid when other leaves
  // are added.
  at::Tensor* sum_of(const NodePtr& accumulator, int64_t owner) {
    for (const auto& entry : entries_) {
      if (entry->accumulator == accumulator) return &entry->sum;
    }
    entries_.push_back(std::make_unique<Entry>(Entry{accumulator, owner, {}}));
    return &entries_.back()->sum;
  }

  // Removes the entries of `owner` and calls visit(Entry) for those that have received a term.
  template <typename Visit>
  void take(int64_t owner, const Visit& visit) {
    if (entries_.empty()) return;
    std::vector<std::unique_ptr<Entry>> rest;
    for (auto& entry : entries_) {
      if (entry->owner != owner) {
        rest.push_back(std::move(entry));
      } else if (entry->sum.defined()) {
        visit(std::move(*entry));
      }
    }
    entries_ = std::move(rest);
  }

  // Removes the entry of a leaf and returns its sum, which is undefined if no term has arrived.
  at::Tensor take_sum(const torch::autograd::Node* accumulator) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if ((*entry)->accumulator.get() != accumulator) continue;
      at::Tensor sum = std::move((*entry)->sum);
      entries_.erase(entry);
      return sum;
    }
    return {};
  }

  bool empty() const { return entries_.empty(); }
  void clear() { entries_.clear(); }

 private:
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_LEAF_SUMS_H_
