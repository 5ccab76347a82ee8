#include "gpipe/internal/backward/split_backward.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/backward/walks_for_tests.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

// local_backward_test checks, for each of its graphs, that both halves together are the whole
// backward.

// Other code may write into the gradients that it passed in, and into the gradients that leave the
// cell. The second half must not see what is written.
TEST(SplitBackward, WhatWaitsSharesMemoryWithNobody) {
  auto sink = make_node<GradientSink>();
  at::Tensor x = torch::ones({2, 2});
  sink->attach(x);
  const at::Tensor w = torch::ones({2, 2}).requires_grad_();
  const at::Tensor p = torch::ones({2, 2}).requires_grad_();
  const at::Tensor y = x.matmul(w) + p.view({2, 2}) + x;
  WalkVisitor visitor;
  visitor.settings.sinks = {sink.get()};
  variable_list gradients = ones_for({y});
  const at::Tensor given = gradients[0].view({2, 2});
  WeightBackward rest = run_input_backward(roots_of({y}), gradients, visitor);
  given.zero_();
  sink->gradients()[0].zero_();
  rest.run(visitor);
  EXPECT_THAT(w.grad(), EqualsBitwise(torch::full({2, 2}, 2.0)));
  EXPECT_THAT(p.grad(), EqualsBitwise(torch::ones({2, 2})));
}

// Records the names of the nodes that run while it lives.
class NodesRun {
 public:
  NodesRun()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& function)
                                           -> std::unique_ptr<at::ObserverContext> {
              const std::string name = function.name();
              if (name.rfind(kPrefix, 0) == 0) names().push_back(name.substr(kPrefix.size()));
              return nullptr;
            }).scopes({at::RecordScope::FUNCTION}))) {
    names().clear();
  }
  ~NodesRun() { at::removeCallback(handle_); }
  std::vector<std::string> take() { return std::exchange(names(), {}); }

 private:
  static inline const std::string kPrefix = "autograd::engine::evaluate_function: ";
  static std::vector<std::string>& names() {
    static std::vector<std::string> result;
    return result;
  }
  at::CallbackHandle handle_;
};

TEST(SplitBackward, ProductsWaitForTheirWeightsAndTheRestRunsOnce) {
  auto sink = make_node<GradientSink>();
  at::Tensor x = torch::randn({3, 5});
  sink->attach(x);
  const at::Tensor w = torch::randn({5, 5}).requires_grad_();
  const at::Tensor p = torch::randn({5}).requires_grad_();
  const at::Tensor scale = torch::randn({5}).requires_grad_();
  const at::Tensor turned = w.t();
  const at::Tensor product = x.matmul(turned) + p;
  const at::Tensor factor = scale.exp();
  const at::Tensor y = (product * factor).tanh();
  WalkVisitor visitor;
  visitor.settings.sinks = {sink.get()};
  variable_list gradients = ones_for({y});
  NodesRun nodes;
  WeightBackward rest = run_input_backward(roots_of({y}), gradients, visitor);
  using ::testing::ElementsAre;
  EXPECT_THAT(nodes.take(), ElementsAre("TanhBackward0", "MulBackward0", "AddBackward0",
                                        "MmBackward0", "GPipeGradientSink"));
  for (const at::Tensor& leaf : {w, p, scale}) EXPECT_FALSE(leaf.grad().defined());
  EXPECT_FALSE(rest.empty());
  rest.run(visitor);
  EXPECT_THAT(nodes.take(), ElementsAre("ExpBackward0", "torch::autograd::AccumulateGrad",
                                        "torch::autograd::AccumulateGrad", "MmBackward0",
                                        "TBackward0", "torch::autograd::AccumulateGrad"));
  for (const at::Tensor& leaf : {w, p, scale}) EXPECT_TRUE(leaf.grad().defined());
  EXPECT_TRUE(rest.empty());
}

// A second half that waits keeps the inputs of the products, and no activation of nodes that have
// run.
TEST(SplitBackward, MemoryOfWhatHasRunIsFreed) {
  auto sink = make_node<GradientSink>();
  at::Tensor x = torch::randn({3, 5});
  sink->attach(x);
  const at::Tensor w = torch::randn({5, 5}).requires_grad_();
  at::Tensor product = x.matmul(w);
  at::Tensor activation = product.sigmoid();
  const c10::weak_intrusive_ptr<c10::StorageImpl> of_activation =
      activation.storage().getWeakStorageImpl();
  const c10::weak_intrusive_ptr<c10::StorageImpl> of_input = x.storage().getWeakStorageImpl();
  WalkVisitor visitor;
  visitor.settings.sinks = {sink.get()};
  variable_list gradients = ones_for({activation});
  edge_list roots = roots_of({activation});
  product = activation = x = at::Tensor();
  EXPECT_FALSE(of_activation.expired()) << "saved for backward";
  WeightBackward rest = run_input_backward(roots, gradients, visitor);
  roots.clear();
  sink->gradients().clear();
  EXPECT_TRUE(of_activation.expired());
  EXPECT_FALSE(of_input.expired());
  rest = WeightBackward();
  EXPECT_TRUE(of_input.expired());
  EXPECT_FALSE(w.grad().defined());
}

// Adds up one leaf's gradients in a tensor.
class SumOf : public WalkVisitor {
 public:
  SumOf(const at::Tensor& leaf, at::Tensor& sum) : leaf_(leaf), sum_(sum) {}
  at::Tensor* sum_of(const NodePtr&, const at::Tensor& leaf) override {
    return leaf.is_same(leaf_) ? &sum_ : nullptr;
  }

 private:
  const at::Tensor& leaf_;
  at::Tensor& sum_;
};

// Other stages wait for the terms of leaves that they own, so these terms belong to the first half.
TEST(SplitBackward, OthersLeavesAreUrgent) {
  const at::Tensor mine = torch::randn({5, 5}).requires_grad_();
  const at::Tensor theirs = torch::randn({5, 5}).requires_grad_();
  const at::Tensor y = mine.matmul(theirs.t());
  at::Tensor sum;
  SumOf visitor(theirs, sum);
  variable_list gradients = ones_for({y});
  WeightBackward rest = run_input_backward(roots_of({y}), gradients, visitor);
  EXPECT_THAT(sum, EqualsBitwise(torch::ones({5, 5}).t().matmul(mine.detach())));
  EXPECT_FALSE(mine.grad().defined());
  sum = at::Tensor();
  rest.run(visitor);
  EXPECT_FALSE(sum.defined());
  EXPECT_THAT(mine.grad(), EqualsBitwise(torch::ones({5, 5}).matmul(theirs.detach())));
}

// Notes which of the cell's nodes leads to each node from outside.
class WaysOutside final : public WalkVisitor {
 public:
  void enter_foreign(const torch::autograd::Node& node) override {
    ways.emplace_back(node.name(), progress.node);
  }
  std::vector<std::pair<std::string, uint64_t>> ways;
};

// Errors name the layer that uses a node from outside the cell. So in either half the visitor must
// learn which of the cell's nodes leads to that node.
TEST(SplitBackward, BothHalvesTellWhatLeadsOutside) {
  auto sink = make_node<GradientSink>();
  const at::Tensor outside = torch::randn({5, 5}).requires_grad_().exp();
  WaysOutside visitor;
  visitor.settings.sinks = {sink.get()};
  visitor.settings.own =
      NodeRange{at::RecordFunction::currentThreadId(), at::sequence_number::peek()};
  at::Tensor x = torch::randn({3, 5});
  sink->attach(x);
  const at::Tensor product = x.matmul(outside);
  const at::Tensor y = product.tanh();
  const std::vector<std::pair<std::string, uint64_t>> want = {
      {"ExpBackward0", product.grad_fn()->sequence_nr()}};
  variable_list gradients = ones_for({y});
  WeightBackward rest = run_input_backward(roots_of({y}), gradients, visitor);
  EXPECT_EQ(visitor.ways, want);
  visitor.ways.clear();
  rest.run(visitor);
  EXPECT_EQ(visitor.ways, want);
}

}  // namespace
}  // namespace gpipe::internal
