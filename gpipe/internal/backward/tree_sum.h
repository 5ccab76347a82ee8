// TreeSum: adds up gradients of groups in one fixed order.
#ifndef GPIPE_INTERNAL_BACKWARD_TREE_SUM_H_
#define GPIPE_INTERNAL_BACKWARD_TREE_SUM_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gpipe::internal {

// Level l adds group k + 2^l to group k, for every k that is a multiple of 2^(l + 1). So the bits
// of the sum do not depend on how the tree is divided into parts. Undefined sums are left out.
//
// A TreeSum keeps at most one tensor more than the tree has levels.
//
// Thread-safety: none.
class TreeSum {
 public:
  // Adds the sum of a group, or of a part of the tree that begins with that group. Groups must
  // ascend.
  void add(int64_t group, at::Tensor sum);

  // Returns the sum of all groups and clears it; undefined if nothing was added.
  at::Tensor take();

 private:
  struct Part {
    int64_t first;  // the part's first group
    at::Tensor sum;
  };
  // Joins the parts of the tree to which no group from `next` on belongs.
  void join_before(int64_t next);

  std::vector<Part> parts_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_TREE_SUM_H_
