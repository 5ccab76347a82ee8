#include "gpipe/internal/local_backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <functional>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

edge_list roots_of(const std::vector<at::Tensor>& outputs) {
  edge_list roots;
  for (const at::Tensor& output : outputs) {
    roots.push_back(torch::autograd::impl::gradient_edge(output));
  }
  return roots;
}

variable_list ones_for(const std::vector<at::Tensor>& outputs) {
  variable_list gradients;
  for (const at::Tensor& output : outputs) gradients.push_back(torch::ones_like(output));
  return gradients;
}

// Runs `model` on fresh leaves, and its backward twice: by the engine and here.
void expect_same_as_engine(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& leaves)>& model) {
  std::vector<variable_list> results;
  for (bool local : {false, true}) {
    testing::manual_seed(3);
    std::vector<at::Tensor> leaves;
    for (int i = 0; i < 4; ++i) leaves.push_back(torch::randn({5, 5}).requires_grad_());
    for (int call = 0; call < 2; ++call) {  // the second adds to gradients that are there
      const std::vector<at::Tensor> outputs = model(leaves);
      const edge_list roots = roots_of(outputs);
      variable_list gradients = ones_for(outputs);
      if (local) {
        ASSERT_TRUE(run_local_backward(roots, gradients, /*keep_graph=*/false));
      } else {
        torch::autograd::Engine::get_default_engine().execute(roots, gradients, false, false, true);
      }
    }
    variable_list& result = results.emplace_back();
    for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
  }
  for (size_t k = 0; k < results[0].size(); ++k) {
    ASSERT_EQ(results[0][k].defined(), results[1][k].defined()) << k;
    if (!results[0][k].defined()) continue;
    ASSERT_EQ(results[0][k].layout(), results[1][k].layout()) << k;
    EXPECT_THAT(results[0][k].to_dense(), EqualsBitwise(results[1][k].to_dense())) << k;
  }
}

using Leaves = std::vector<at::Tensor>;

TEST(LocalBackward, AChain) {
  expect_same_as_engine([](const Leaves& x) { return Leaves{(x[0].matmul(x[1]).tanh() + x[2])}; });
}

TEST(LocalBackward, SumsOfManyUsesAreAddedInTheEnginesOrder) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor y = x[0] * 1.1;
    at::Tensor sum = y.sin();
    for (int i = 0; i < 9; ++i) sum = sum + (y * (0.3 + i)).cos() * sum.exp().tanh();
    return Leaves{sum};
  });
}

TEST(LocalBackward, SeveralRootsOneBehindAnother) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor inner = x[0].matmul(x[1]).sigmoid();
    at::Tensor outer = (inner * x[2]).matmul(inner) * inner;
    return Leaves{inner, outer, inner};
  });
}

TEST(LocalBackward, BroadcastAndCastGradientsAreReduced) {
  expect_same_as_engine([](const Leaves& x) {
    return Leaves{(x[0][0] + x[1]).to(torch::kDouble) * x[2].select(1, 0).unsqueeze(1)};
  });
}

TEST(LocalBackward, SparseGradients) {
  expect_same_as_engine([](const Leaves& x) {
    namespace F = torch::nn::functional;
    const at::Tensor indices = torch::tensor({0, 3, 3, 1});
    return Leaves{F::embedding(indices, x[0], F::EmbeddingFuncOptions().sparse(true)) * 2};
  });
}

TEST(LocalBackward, ChangesInPlaceAndViews) {
  expect_same_as_engine([](const Leaves& x) {
    at::Tensor y = x[0] * 2;
    y.slice(0, 1, 3).mul_(x[1].slice(0, 0, 2));
    y.add_(x[3].t());
    return Leaves{y.t().matmul(x[2])};
  });
}

TEST(LocalBackward, KeepsTheGraphIfAskedTo) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  const at::Tensor y = x.exp();
  for (int i = 1; i <= 2; ++i) {
    variable_list gradients = ones_for({y});
    ASSERT_TRUE(run_local_backward(roots_of({y}), gradients, /*keep_graph=*/true));
    EXPECT_THAT(x.grad(), EqualsBitwise(i * y)) << i;
  }
  variable_list gradients = ones_for({y});
  ASSERT_TRUE(run_local_backward(roots_of({y}), gradients, /*keep_graph=*/false));
  gradients = ones_for({y});
  EXPECT_THROW(run_local_backward(roots_of({y}), gradients, false), c10::Error)
      << "what the node had saved is freed";
}

TEST(LocalBackward, AGradientOfAnotherShapeIsRefused) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  const at::Tensor y = x.exp();
  variable_list gradients = {torch::ones({2})};
  EXPECT_THROW(run_local_backward(roots_of({y}), gradients, false), c10::Error);
}

TEST(LocalBackward, ThrowsWhatANodeThrows) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  const at::Tensor saved = x * 2;
  const at::Tensor y = saved.exp() * saved;
  saved.detach().add_(1);
  variable_list gradients = ones_for({y});
  EXPECT_THROW(run_local_backward(roots_of({y}), gradients, false), c10::Error);
  EXPECT_FALSE(x.grad().defined());
}

// Refuses, and has done nothing.
void expect_refused(const at::Tensor& leaf, const at::Tensor& output) {
  variable_list gradients = ones_for({output});
  EXPECT_FALSE(run_local_backward(roots_of({output}), gradients, false));
  EXPECT_FALSE(leaf.grad().defined());
  EXPECT_TRUE(gradients[0].defined());
}

TEST(LocalBackward, LeavesGraphsWithHooksToTheEngine) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  at::Tensor inner = x * 2;
  inner.register_hook([](const at::Tensor&) {});
  expect_refused(x, inner.exp());

  const at::Tensor hooked = torch::randn({3}).requires_grad_();
  hooked.register_hook([](const at::Tensor&) {});
  expect_refused(hooked, hooked.exp());

  const at::Tensor y = torch::randn({3}).requires_grad_();
  const at::Tensor retaining = y * 2;
  retaining.retain_grad();
  expect_refused(y, retaining.exp());
}

struct TwiceFunction : torch::autograd::Function<TwiceFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST(LocalBackward, LeavesCustomFunctionsToTheEngine) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  expect_refused(x, TwiceFunction::apply(x).exp());
}

TEST(LocalBackward, LeavesAnomalyModeToTheEngine) {
  torch::autograd::DetectAnomalyGuard anomaly;
  const at::Tensor x = torch::randn({3}).requires_grad_();
  expect_refused(x, x.exp());
}

}  // namespace
}  // namespace gpipe::internal
