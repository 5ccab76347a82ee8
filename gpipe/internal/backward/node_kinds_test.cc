#include "gpipe/internal/backward/node_kinds.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/functional/normalization.h>
#include <torch/types.h>

#include <memory>
#include <utility>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/libtorch/versions.h"

namespace torch::autograd {

// Has the name of the class of Python's functions, which is not in a program without Python.
struct PyNode final : Node {
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
};

}  // namespace torch::autograd

namespace gpipe::internal {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

NodePtr node_of(const at::Tensor& tensor) {
  return torch::autograd::impl::gradient_edge(tensor).function;
}

at::Tensor leaf() { return torch::ones({2, 2}).requires_grad_(); }

struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    return {gradients[0] * 2};
  }
};

// A type that users derive from `Base` has user code, unless `Base` is our OperatorNode.
template <typename Base>
class PassedOn final : public Base {
 public:
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
};

TEST(NodeKinds, AreToldApart) {
  const at::Tensor x = leaf();
  EXPECT_EQ(kind_of(*node_of(x)), NodeKind::kLeaf);
  EXPECT_EQ(kind_of(*node_of(x * x)), NodeKind::kOperator);
  EXPECT_EQ(kind_of(*node_of(x.mm(x))), NodeKind::kOperator);
  EXPECT_EQ(kind_of(GradientSink()), NodeKind::kSink);
  EXPECT_EQ(kind_of(*node_of(Doubled::apply(x))), NodeKind::kOther);
  EXPECT_EQ(kind_of(PassedOn<Node>()), NodeKind::kOther);
  EXPECT_EQ(kind_of(PassedOn<OperatorNode>()), NodeKind::kOperator);
}

TEST(NodeKinds, OnlyUsersFunctionsRunUsersCode) {
  const at::Tensor x = leaf();
  EXPECT_TRUE(is_custom_function(*node_of(Doubled::apply(x))));
  EXPECT_TRUE(runs_users_code(*node_of(Doubled::apply(x))));
  EXPECT_TRUE(is_custom_function(torch::autograd::PyNode()));
  EXPECT_TRUE(runs_users_code(torch::autograd::PyNode()));
  EXPECT_FALSE(is_custom_function(PassedOn<Node>()));
  EXPECT_TRUE(runs_users_code(PassedOn<Node>()));
  for (const at::Tensor& y : {x, x * x}) {
    EXPECT_FALSE(is_custom_function(*node_of(y)));
    EXPECT_FALSE(runs_users_code(*node_of(y)));
  }
}

TEST(NodeKinds, HooksOfEveryKindMayWrite) {
  const at::Tensor plain = leaf() * 2;
  EXPECT_FALSE(has_hooks(*node_of(plain)));
  EXPECT_FALSE(may_write(*node_of(plain)));

  const at::Tensor hooked = leaf() * 2;
  hooked.register_hook([](const at::Tensor& gradient) { return gradient; });
  EXPECT_TRUE(has_hooks(*node_of(hooked)));
  EXPECT_TRUE(may_write(*node_of(hooked)));

  const at::Tensor retained = leaf() * 2;
  retained.retain_grad();
  EXPECT_TRUE(has_hooks(*node_of(retained)));

  // The node of a user's function has no hooks, but the function itself may write into gradients.
  EXPECT_FALSE(has_hooks(*node_of(Doubled::apply(leaf()))));
  EXPECT_TRUE(may_write(*node_of(Doubled::apply(leaf()))));
}

TEST(NodeKinds, ProductsAndWhatComputesAnew) {
  const at::Tensor x = leaf();
  EXPECT_TRUE(is_product(*node_of(x.mm(x))));
  EXPECT_TRUE(computes_anew(*node_of(x.mm(x))));
  EXPECT_FALSE(is_product(*node_of(x * x)));
  EXPECT_TRUE(computes_anew(*node_of(x * x)));
  EXPECT_FALSE(computes_anew(*node_of(x + x)));
  const at::Tensor normed = torch::nn::functional::layer_norm(
      x, torch::nn::functional::LayerNormFuncOptions({2}).weight(torch::ones({2})));
  EXPECT_FALSE(is_product(*node_of(normed)));
  EXPECT_TRUE(computes_anew(*node_of(normed)));
}

}  // namespace
}  // namespace gpipe::internal
