#include "gpipe/internal/libtorch/versions.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

namespace gpipe::internal {
namespace {

using torch::autograd::variable_list;

struct ChainNode : torch::autograd::Node {
  using Node::Node;
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
};

TEST(Versions, MakeNodeReturnsWhatAnEdgeTakes) {
  const NodePtrTo<ChainNode> node = make_node<ChainNode>();
  const torch::autograd::Edge edge(node, 0);
  EXPECT_EQ(edge.function.get(), node.get());
  EXPECT_EQ(node->getptr().get(), node.get()) << "the node knows its owner";
}

TEST(Versions, ALongChainIsDeletedWithoutRecursion) {
  NodePtr last;
  for (int k = 0; k < 300'000; ++k) {
    torch::autograd::edge_list edges;
    if (last) edges.emplace_back(std::move(last), 0);
    last = make_node<ChainNode>(std::move(edges));
  }
  last.reset();  // a recursive deletion overflows the stack here
}

struct NamedTensor {
  bool has_names() const { return true; }
};

TEST(Versions, NamesAreAskedOnlyOfATensorThatMayHaveThem) {
  EXPECT_TRUE(has_names(NamedTensor()));
  EXPECT_FALSE(has_names(std::string("a type without has_names()")));
  EXPECT_FALSE(has_names(at::ones({2})));
}

}  // namespace
}  // namespace gpipe::internal
