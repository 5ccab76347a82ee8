#include "gpipe/internal/graphs/saved_versions.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

namespace gpipe::internal {
namespace {

// The backward of sin needs x, so autograd checks the version of x.
TEST(SavedVersions, AChangeBeforeTheForwardDoesNotCountAndOneAfterItDoes) {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  const std::vector<at::Tensor> tensors = {x};
  const at::Tensor y = x.sin().sum();
  const std::vector<int64_t> saved = versions_of(tensors);
  const auto change = [&] {
    const torch::NoGradGuard no_grad;
    x.add_(1);
  };
  change();
  EXPECT_ANY_THROW(y.backward({}, /*retain_graph=*/true));
  const std::vector<int64_t> in_forward = versions_of(tensors);
  {
    const SavedVersionsScope scope(tensors, saved, in_forward);
    EXPECT_NO_THROW(y.backward({}, /*retain_graph=*/true));
  }
  EXPECT_EQ(versions_of(tensors), in_forward);
  change();
  const std::vector<int64_t> now = versions_of(tensors);
  {
    const SavedVersionsScope scope(tensors, saved, in_forward);
    EXPECT_ANY_THROW(y.backward({}, /*retain_graph=*/true));
  }
  EXPECT_EQ(versions_of(tensors), now);
}

}  // namespace
}  // namespace gpipe::internal
