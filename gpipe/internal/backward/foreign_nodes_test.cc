#include "gpipe/internal/backward/foreign_nodes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ForeignNodesTest, EachBelongsToTheStageThatReachedItFirst) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  const at::Tensor a = x * 2;
  const at::Tensor b = x * 3;
  ForeignNodes nodes;
  nodes.enter(*a.grad_fn(), 2);
  nodes.enter(*b.grad_fn(), 0);
  nodes.enter(*a.grad_fn(), 2);  // another micro-batch of stage 2 may reach the node again
  EXPECT_THAT(([&] { nodes.enter(*a.grad_fn(), 1); }),
              ThrowsMessage<c10::Error>(AllOf(HasSubstr("stages 1 and 2"),
                                              HasSubstr("MulBackward1"), HasSubstr("detach()"))));
  nodes.clear();
  EXPECT_NO_THROW(nodes.enter(*a.grad_fn(), 1));
}

// A node that is made later may have the address of a node that is gone. The stage that has reached
// the former node must not count for the new one.
TEST(ForeignNodesTest, ANodeThatIsGoneBelongsToNoStage) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  ForeignNodes nodes;
  for (int64_t k = 0; k < 100; ++k) {
    const at::Tensor y = x * 2;
    EXPECT_NO_THROW(nodes.enter(*y.grad_fn(), k % 2));
  }
}

}  // namespace
}  // namespace gpipe::internal
