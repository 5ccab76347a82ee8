#include "gpipe/internal/backward/tree_sum.h"

#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <utility>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

// The first group behind the smallest part of the tree that contains both groups.
int64_t end_of_common_part(int64_t a, int64_t b) {
  int level = 0;
  while (a >> level != b >> level) ++level;
  return ((a >> level) + 1) << level;
}

bool is_alone(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.use_count() == 1 && !shares_storage(tensor) &&
         tensor.is_non_overlapping_and_dense();
}

at::Tensor sum_of(at::Tensor a, at::Tensor b) {
  const c10::NoGradGuard no_grad;
  if (is_alone(a) && a.scalar_type() == b.scalar_type()) return a.add_(b);
  // LibTorch adds a sparse tensor to a dense one, and not the reverse.
  return a.layout() == c10::kStrided ? at::add(a, b) : at::add(b, a);
}

}  // namespace

void TreeSum::join_before(int64_t next) {
  while (parts_.size() > 1) {
    Part& left = parts_[parts_.size() - 2];
    Part& right = parts_.back();
    if (end_of_common_part(left.first, right.first) > next) return;
    left.sum = sum_of(std::move(left.sum), std::move(right.sum));
    parts_.pop_back();
  }
}

void TreeSum::add(int64_t group, at::Tensor sum) {
  if (!sum.defined()) return;
  join_before(group);
  parts_.push_back({group, std::move(sum)});
}

at::Tensor TreeSum::take() {
  join_before(std::numeric_limits<int64_t>::max());
  at::Tensor sum;
  if (!parts_.empty()) sum = std::move(parts_.front().sum);
  parts_.clear();
  return sum;
}

}  // namespace gpipe::internal
