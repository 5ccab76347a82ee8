#include "gpipe/internal/backward/urgent_nodes.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/backward/walks_for_tests.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {
namespace {

using torch::autograd::edge_list;

class SumOf final : public WalkVisitor {
 public:
  at::Tensor* sum_of(const NodePtr&, const at::Tensor& reached) override {
    return leaf.is_same(reached) ? &sum : nullptr;
  }
  at::Tensor leaf;
  at::Tensor sum;
};

struct UrgentNodes : ::testing::Test {
  UrgentNodes() {
    sink->attach(input);
    visitor.settings.sinks = {sink.get()};
  }

  // Marks the nodes behind `output`. After that, urgent() can be asked about each.
  ReachedNodes& mark(const at::Tensor& output) {
    roots = roots_of({output});
    nodes = std::make_unique<ReachedNodes>(visitor);
    nodes->reach(roots[0]);
    nodes->find_rest();
    mark_urgent(*nodes, roots);
    return *nodes;
  }
  bool urgent(const at::Tensor& tensor) {
    return nodes->at(torch::autograd::impl::gradient_edge(tensor)).urgent;
  }

  const NodePtrTo<GradientSink> sink = make_node<GradientSink>();
  at::Tensor input = torch::ones({2, 2});
  const at::Tensor weight = torch::ones({2, 2}).requires_grad_();
  const at::Tensor other = torch::ones({2, 2}).requires_grad_();
  SumOf visitor;
  edge_list roots;
  std::unique_ptr<ReachedNodes> nodes;
};

TEST_F(UrgentNodes, LeadToASink) {
  const at::Tensor scaled = input * 2;
  const at::Tensor of_weight = weight.exp();
  const at::Tensor y = scaled.mm(of_weight);
  ReachedNodes& reached = mark(y);
  EXPECT_TRUE(urgent(y));
  EXPECT_TRUE(urgent(scaled));
  EXPECT_TRUE(urgent(input));
  EXPECT_FALSE(urgent(of_weight));
  EXPECT_FALSE(urgent(weight));

  const edge_list rest = not_urgent(reached, y.grad_fn()->next_edges());
  ASSERT_EQ(rest.size(), 2);
  EXPECT_FALSE(rest[0].is_valid());
  EXPECT_EQ(rest[1].function, of_weight.grad_fn());
  EXPECT_TRUE(not_urgent(reached, scaled.grad_fn()->next_edges()).empty());
}

TEST_F(UrgentNodes, LeadToALeafWhoseSumOthersWaitFor) {
  visitor.leaf = other;
  const at::Tensor of_weight = weight.exp();
  const at::Tensor of_other = other.exp();
  mark(of_weight * of_other);
  EXPECT_TRUE(urgent(of_other));
  EXPECT_FALSE(urgent(of_weight));
}

TEST_F(UrgentNodes, AreNoneIfNobodyWaits) {
  const at::Tensor y = weight.exp() * other;
  mark(y);
  EXPECT_FALSE(urgent(y));
}

TEST_F(UrgentNodes, LeadToUsersCodeThatMayWriteIntoWhatTheyShare) {
  // An addition passes on the gradient that it is given, so the hook may write into the input's
  // gradient, and its node is urgent. A product makes a new gradient, so the node can wait.
  for (const bool shared : {true, false}) {
    SCOPED_TRACE(shared);
    const at::Tensor hooked = weight * 2;
    hooked.register_hook([](const at::Tensor& gradient) { gradient.mul_(3); });
    mark(shared ? input + hooked : input.mm(hooked));
    EXPECT_EQ(urgent(hooked), shared);
  }
}

}  // namespace
}  // namespace gpipe::internal
