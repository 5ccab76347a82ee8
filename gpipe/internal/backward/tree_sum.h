// TreeSum: adds up gradients of groups in one fixed order.
#ifndef GPIPE_INTERNAL_BACKWARD_TREE_SUM_H_
#define GPIPE_INTERNAL_BACKWARD_TREE_SUM_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gpipe::internal {

// Level l adds group k + 2^l to group k, for every k that is a multiple of 2^(l + 1). So the bits
// of the sum do not depend on who added which part of the tree. What is undefined is left out.
//
// It keeps at most as many tensors as the tree has levels, and one.
//
// Thread-safety: none.
class TreeSum {
 public:
  // The sum of a group, or of a part of the tree that begins with it. Groups ascend.
  void add(int64_t group, at::Tensor sum);

  // The sum of all, and nothing is left; undefined if nothing was added.
  at::Tensor take();

 private:
  struct Part {
    int64_t first;  // group
    at::Tensor sum;
  };
  // Adds up what no group from `next` on belongs to.
  void join_before(int64_t next);

  std::vector<Part> parts_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_TREE_SUM_H_
