#include "gpipe/internal/graphs/graph_leaves.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using torch::autograd::impl::gradient_edge;

NodeRange from_now() {
  return {at::RecordFunction::currentThreadId(), at::sequence_number::peek()};
}

at::Tensor leaf() { return torch::ones({2}).requires_grad_(); }

TEST(GraphLeaves, AreFoundOnceWithTheirUses) {
  const at::Tensor a = leaf();
  const at::Tensor b = leaf();
  const auto own = from_now();
  const at::Tensor y = a * b + a.sin() * a;
  const GraphLeaves found = leaves_of({gradient_edge(y)}, own);
  EXPECT_EQ(found.reason, "");
  ASSERT_EQ(found.leaves.size(), 2);
  for (const GraphLeaves::Leaf& found_leaf : found.leaves) {
    EXPECT_TRUE(found_leaf.tensor.is_same(a) || found_leaf.tensor.is_same(b));
    EXPECT_EQ(found_leaf.uses, found_leaf.tensor.is_same(a) ? 3 : 1);
    EXPECT_EQ(found_leaf.accumulator.function, gradient_edge(found_leaf.tensor).function);
  }
}

TEST(GraphLeaves, ASinkIsAnEnd) {
  const auto own = from_now();
  const auto sink = make_node<GradientSink>();
  const at::Tensor input = torch::ones({2});
  sink->attach(input);
  const GraphLeaves found = leaves_of({gradient_edge(input * 2)}, own);
  EXPECT_EQ(found.reason, "");
  EXPECT_TRUE(found.leaves.empty());
}

TEST(GraphLeaves, ALeafThatIsARootIsOne) {
  const at::Tensor a = leaf();
  EXPECT_EQ(leaves_of({gradient_edge(a)}, from_now()).leaves.size(), 1);
}

TEST(GraphLeaves, NodesFromOutsideAreAReason) {
  const at::Tensor outside = leaf().cos();
  const auto own = from_now();
  const GraphLeaves found = leaves_of({gradient_edge(outside.sin())}, own);
  EXPECT_THAT(found.reason, HasSubstr("CosBackward0 was made outside of the stage"));
}

struct Twice : torch::autograd::Function<Twice> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST(GraphLeaves, CodeOfUsersIsAReason) {
  const auto own = from_now();
  EXPECT_THAT(leaves_of({gradient_edge(Twice::apply(leaf()))}, own).reason,
              HasSubstr("is a function of yours"));
  const at::Tensor hooked = leaf().sin();
  hooked.register_hook([](const at::Tensor& gradient) { return gradient; });
  EXPECT_THAT(leaves_of({gradient_edge(hooked * 2)}, own).reason,
              HasSubstr("SinBackward0 has a hook"));
  const at::Tensor parameter = leaf();
  parameter.register_hook([](const at::Tensor& gradient) { return gradient; });
  EXPECT_EQ(leaves_of({gradient_edge(parameter * 2)}, own).reason, "a parameter has a hook");
}

}  // namespace
}  // namespace gpipe::internal
