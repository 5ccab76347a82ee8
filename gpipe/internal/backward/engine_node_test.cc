#include "gpipe/internal/backward/engine_node.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/types.h>

#include <functional>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

TEST(EdgesScope, GivesTheNodeOtherEdgesForAWhile) {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  const at::Tensor y = x * x;
  torch::autograd::Node& node = *y.grad_fn();
  {
    const EdgesScope scope(node, {Edge(), node.next_edge(1)});
    EXPECT_FALSE(node.next_edge(0).is_valid());
    EXPECT_TRUE(node.next_edge(1).is_valid());
  }
  EXPECT_TRUE(node.next_edge(0).is_valid());
}

TEST(RunInEngine, GivesTheNodesResultsWithItsHooksAndRunsNothingBehind) {
  const at::Tensor x = torch::randn({3}).requires_grad_();
  const at::Tensor z = torch::randn({3});
  const at::Tensor inner = x.exp();
  const at::Tensor y = inner * z;  // the second edge is not valid
  y.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  const edge_list before = y.grad_fn()->next_edges();
  const variable_list results =
      run_in_engine(*y.grad_fn(), {torch::full({3}, 5.0)}, /*keep_graph=*/false);
  ASSERT_EQ(results.size(), 2);
  EXPECT_THAT(results[0], EqualsBitwise(10 * z));
  EXPECT_FALSE(results[1].defined());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(y.grad_fn()->next_edges()[0].function, before[0].function);
}

struct TwoValues : torch::autograd::Function<TwoValues> {
  static variable_list forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return {x * 2, x * 3};
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    torch::autograd::Engine::get_default_engine().queue_callback([] { ++callbacks; });
    return {gradients[1] * 3};
  }
  static inline int callbacks = 0;
};

TEST(RunInEngine, HasAGraphTaskAndTakesUndefinedInputs) {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  const variable_list values = TwoValues::apply(x);
  TwoValues::callbacks = 0;
  const variable_list results =
      run_in_engine(*values[0].grad_fn(), {at::Tensor(), torch::ones({2})},
                    /*keep_graph=*/false);
  ASSERT_EQ(results.size(), 1);
  EXPECT_THAT(results[0], EqualsBitwise(torch::full({2}, 3.0)));
  EXPECT_EQ(TwoValues::callbacks, 1);
}

TEST(RunInEngine, KeepsWhatIsSavedIfAskedTo) {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  const at::Tensor y = x.exp();
  for (const bool keep : {true, false}) {
    EXPECT_TRUE(run_in_engine(*y.grad_fn(), {torch::ones({2})}, keep)[0].defined());
  }
  EXPECT_THROW(run_in_engine(*y.grad_fn(), {torch::ones({2})}, false), c10::Error);
  EXPECT_TRUE(y.grad_fn()->next_edge(0).is_valid()) << "the edge must survive the failed run, too";
  EXPECT_EQ(y.grad_fn()->next_edge(0).function->name(), "torch::autograd::AccumulateGrad");
}

// A custom function whose backward runs the given code.
struct DoesInBackward : torch::autograd::Function<DoesInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::function<void()>& work) {
    context->saved_data["work"] = reinterpret_cast<int64_t>(&work);
    return x * 2;
  }
  static variable_list backward(torch::autograd::AutogradContext* context, variable_list) {
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["work"].toInt()))();
    return {torch::ones({1}), at::Tensor()};
  }
};

TEST(RunForAllGradients, NodesComputeWhatTheBackwardAroundThemDoesNotAskFor) {
  const at::Tensor x = torch::ones({1}).requires_grad_();
  const at::Tensor a = torch::ones({1}).requires_grad_();
  const at::Tensor b = torch::ones({1}).requires_grad_();
  const at::Tensor product = a * b;
  const auto gradients_there = [&] {
    return (*product.grad_fn())(variable_list{torch::ones({1})});
  };
  variable_list without;
  variable_list with;
  const std::function<void()> work = [&] {
    without = gradients_there();
    run_for_all_gradients([&] { with = gradients_there(); });
  };
  torch::autograd::grad({DoesInBackward::apply(x, work)}, {x});
  EXPECT_FALSE(without[0].defined())
      << "LibTorch has changed: is run_for_all_gradients() still needed?";
  ASSERT_TRUE(with[0].defined());
  EXPECT_TRUE(with[1].defined());
}

TEST(RunForAllGradients, ThrowsAnythingThatTheWorkThrows) {
  const at::Tensor x = torch::ones({1}).requires_grad_();
  int caught = 0;
  const std::function<void()> work = [&] {
    try {
      run_for_all_gradients([] { throw 7; });
    } catch (int thrown) {
      caught = thrown;
    }
  };
  torch::autograd::grad({DoesInBackward::apply(x, work)}, {x});
  EXPECT_EQ(caught, 7);
  EXPECT_THROW(run_for_all_gradients([] { throw 7; }), int) << "outside of a backward";
}

}  // namespace
}  // namespace gpipe::internal
