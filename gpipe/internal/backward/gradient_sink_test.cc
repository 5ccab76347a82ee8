#include "gpipe/internal/backward/gradient_sink.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <memory>

#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;

TEST(GradientSinkTest, KeepsEachGradientUnderTheIndexOfItsTensor) {
  const auto sink = make_node<GradientSink>();
  const at::Tensor a = at::randn({3, 2});
  const at::Tensor b = at::randn({4}, at::kDouble);
  const at::Tensor c = at::randn({2}, at::kBFloat16);
  EXPECT_EQ(sink->attach(a), 0u);
  EXPECT_EQ(sink->attach(b), 1u);
  EXPECT_EQ(sink->attach(c), 2u);
  const at::Tensor da = at::randn({3, 2});
  const at::Tensor db = at::randn({4}, at::kDouble);
  const at::Tensor dc = at::randn({2}, at::kBFloat16);
  ((a * da).sum() + (b * db).sum() + (c * dc).sum()).backward();
  EXPECT_THAT(sink->gradients(), EqualsBitwise(torch::autograd::variable_list{da, db, dc}));
}

TEST(GradientSinkTest, AGradientIsTheSumOverAllUses) {
  const auto sink = make_node<GradientSink>();
  const at::Tensor x = at::randn({5});
  sink->attach(x);
  (x * 2 + x * 3).sum().backward();
  EXPECT_THAT(sink->gradients()[0], EqualsBitwise(at::full({5}, 5.0)));
}

TEST(GradientSinkTest, WhatTheBackwardDidNotReachHasNoGradient) {
  const auto sink = make_node<GradientSink>();
  const at::Tensor before = at::randn({2});
  const at::Tensor reached = at::randn({2});
  const at::Tensor after = at::randn({2});
  for (const at::Tensor& tensor : {before, reached, after}) sink->attach(tensor);
  const at::Tensor unused = before * after;
  (reached * 2).sum().backward();
  ASSERT_EQ(sink->gradients().size(), 3u);
  EXPECT_FALSE(sink->gradients()[0].defined());
  EXPECT_TRUE(sink->gradients()[1].defined());
  EXPECT_FALSE(sink->gradients()[2].defined());
}

TEST(GradientSinkTest, WhereNoBackwardRanThereAreNoGradients) {
  const auto sink = make_node<GradientSink>();
  sink->attach(at::randn({2}));
  EXPECT_TRUE(sink->gradients().empty());
}

// An attached tensor behaves as in the unpartitioned model, where it is the result of the layer
// before.
TEST(GradientSinkTest, AnAttachedTensorIsNotALeafAndMayBeChangedInPlace) {
  const at::Tensor leaf = at::randn({4}).requires_grad_();
  auto layers = [](at::Tensor x) { return x.mul_(3).pow(3).sum(); };
  layers(leaf.clone()).backward();

  const auto sink = make_node<GradientSink>();
  const at::Tensor x = leaf.detach().clone();
  sink->attach(x);
  EXPECT_TRUE(x.requires_grad());
  EXPECT_FALSE(x.is_leaf());
  layers(x).backward();
  EXPECT_THAT(sink->gradients()[0], EqualsBitwise(leaf.grad()));
}

TEST(GradientSinkTest, LivesAsLongAsTheGraphAndShowsItsName) {
  auto sink = make_node<GradientSink>();
  const WeakNodePtrTo<GradientSink> weak(sink);
  at::Tensor x = at::randn({2});
  sink->attach(x);
  sink.reset();
  at::Tensor y = x * 2;
  x = at::Tensor();
  ASSERT_FALSE(weak.expired());
  EXPECT_EQ(weak.lock()->name(), "GPipeGradientSink");
  y.sum().backward();
  EXPECT_THAT(weak.lock()->gradients()[0], EqualsBitwise(at::full({2}, 2.0)));
  y = at::Tensor();
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace gpipe::internal
