#include "gpipe/internal/boundary/leaving.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string layer() { return "layer 3 ('relu')"; }

// Tests leave() for stage 1, whose outputs are one tensor each.
class LeaveTest : public ::testing::Test {
 protected:
  explicit LeaveTest() { plan_.record = true; }

  // Returns the items that leave: [output]. `targets`: [output] the stage that it goes to.
  std::vector<Item> leave(std::vector<at::Tensor> outputs, const std::vector<int64_t>& targets,
                          bool copies = false) {
    Boundary boundary;
    boundary.stage = 1;
    boundary.copies = copies;
    result_.outputs.clear();
    for (size_t k = 0; k < outputs.size(); ++k) {
      boundary.ports.outputs.push_back({std::nullopt, targets.at(k)});
      result_.outputs.push_back({ValueKind::kTensor, {std::move(outputs[k])}});
    }
    outputs.clear();
    std::vector<Item> items;
    for (Packet& packet : internal::leave(boundary, plan_, result_, handed_over_, layer)) {
      items.push_back(std::move(packet.items.at(0)));
    }
    return items;
  }

  static at::Tensor computed() { return at::ones({4}).requires_grad_() * 2; }

  CellPlan plan_;
  LayersResult result_;
  HandedOver handed_over_;
};

TEST_F(LeaveTest, NoGraphGoesAlong) {
  const at::Tensor tensor = computed();
  const std::vector<Item> left = leave({tensor, at::Tensor()}, {2, 3});
  EXPECT_TRUE(left[0].needs_grad);
  EXPECT_FALSE(left[0].tensor.requires_grad());
  EXPECT_TRUE(left[0].tensor.is_alias_of(tensor));
  EXPECT_FALSE(left[0].read_only || left[0].shared || left[0].constant);
  EXPECT_FALSE(left[0].is_changed());
  tensor.detach().add_(1);
  EXPECT_TRUE(left[0].is_changed()) << "a change in one stage is a change in the other";
  EXPECT_FALSE(left[1].tensor.defined() || left[1].needs_grad);
  plan_.record = false;
  EXPECT_FALSE(leave({computed()}, {2})[0].needs_grad);
}

TEST_F(LeaveTest, TwinsStayOneTensor) {
  const at::Tensor tensor = computed();
  std::vector<Item> left = leave({tensor, tensor}, {2, 2});
  EXPECT_TRUE(left[0].tensor.is_same(left[1].tensor));
  EXPECT_FALSE(left[0].shared || left[0].read_only)
      << "they go to the same stage, and become one tensor again";
  left = leave({tensor, tensor}, {2, 2}, /*copies=*/true);
  EXPECT_TRUE(left[0].shared && left[1].shared) << "each is copied separately";
  EXPECT_TRUE(left[0].read_only && left[1].read_only);
}

TEST_F(LeaveTest, OfTwinsTheStageThatComesFirstMustNotChangeIt) {
  const at::Tensor tensor = computed();
  std::vector<Item> left = leave({tensor, tensor}, {2, 4});
  EXPECT_TRUE(left[0].shared && left[1].shared);
  EXPECT_TRUE(left[0].read_only);
  EXPECT_FALSE(left[1].read_only);
  left = leave({tensor, tensor}, {4, 2});
  EXPECT_FALSE(left[0].read_only);
  EXPECT_TRUE(left[1].read_only);
}

TEST_F(LeaveTest, TensorsThatOverlapAreMarked) {
  const at::Tensor tensor = computed();
  std::vector<Item> left = leave({tensor, tensor.narrow(0, 1, 2)}, {2, 2});
  EXPECT_FALSE(left[0].tensor.is_same(left[1].tensor));
  EXPECT_TRUE(left[0].shared && left[1].shared);
  EXPECT_TRUE(left[0].read_only && left[1].read_only);
  left = leave({tensor.narrow(0, 0, 2), tensor.narrow(0, 2, 2)}, {2, 2});
  EXPECT_FALSE(left[0].shared || left[1].shared || left[0].read_only || left[1].read_only)
      << "they have no element in common";
  left = leave({computed(), computed()}, {2, 2});
  EXPECT_FALSE(left[0].shared || left[1].shared);
}

TEST_F(LeaveTest, WhereNoGradientAndNoCopyIsOneMayBeChanged) {
  const at::Tensor numbers = at::arange(4);
  std::vector<Item> left = leave({numbers, numbers}, {2, 3});
  EXPECT_TRUE(left[0].shared && left[1].shared);
  EXPECT_FALSE(left[0].read_only || left[1].read_only);
  left = leave({numbers, numbers}, {2, 3}, /*copies=*/true);
  EXPECT_TRUE(left[0].read_only);
  const at::Tensor values = at::ones({4});
  EXPECT_TRUE(leave({values, values}, {2, 3})[0].read_only)
      << "a parameter may come in by a change";
}

TEST_F(LeaveTest, TheModelsMemoryIsReadOnly) {
  torch::nn::Linear linear(4, 4);
  std::vector<Layer> layers;
  layers.push_back({torch::nn::AnyModule(linear), "linear", 0, skip::CallPlan(*linear)});
  plan_.model = ModelState({&layers});
  const std::vector<Item> left = leave({linear->weight, computed()}, {2, 2});
  EXPECT_TRUE(left[0].read_only);
  EXPECT_TRUE(left[0].tensor.is_alias_of(linear->weight));
  EXPECT_FALSE(left[1].read_only);
}

TEST_F(LeaveTest, MemoryKeepsTheMarksWithWhichItCame) {
  const at::Tensor read_only = computed();
  const at::Tensor shared = computed();
  const at::Tensor constant = at::ones({4});
  result_.read_only = {read_only.storage().getWeakStorageImpl()};
  result_.shared = {shared.storage().getWeakStorageImpl()};
  result_.constant = {constant.storage().getWeakStorageImpl()};
  std::vector<Item> left = leave({read_only.view({2, 2}), shared, constant}, {2, 2, 2});
  EXPECT_TRUE(left[0].read_only && !left[0].shared && !left[0].constant);
  EXPECT_TRUE(!left[1].read_only && left[1].shared && !left[1].constant);
  EXPECT_TRUE(!left[2].read_only && !left[2].shared && left[2].constant);
}

TEST_F(LeaveTest, WhatSomebodyHereMayChangeLeavesAsACopy) {
  at::Tensor kept = at::ones({4});
  std::vector<Item> left = leave({kept, kept}, {2, 3});
  EXPECT_FALSE(left[0].tensor.is_alias_of(kept));
  EXPECT_TRUE(left[0].tensor.is_same(left[1].tensor)) << "a tensor that leaves twice has one copy";
  kept.zero_();
  EXPECT_THAT(left[0].tensor, EqualsBitwise(at::ones({4})));
  EXPECT_FALSE(left[0].is_changed());
}

TEST_F(LeaveTest, WhatNobodyChangesIsNotCopiedUnlessPacketsAre) {
  const at::Tensor kept = at::ones({4});
  result_.constant = {kept.storage().getWeakStorageImpl()};
  EXPECT_TRUE(leave({kept}, {2})[0].tensor.is_alias_of(kept));
  EXPECT_FALSE(leave({kept}, {2}, /*copies=*/true)[0].tensor.is_alias_of(kept));
  result_.shared = {kept.storage().getWeakStorageImpl()};
  EXPECT_TRUE(leave({kept}, {2}, /*copies=*/true)[0].tensor.is_alias_of(kept))
      << "not copied, because other tensors of the packets share this memory";
}

TEST_F(LeaveTest, MemoryThatLeftAndHasChangedSinceIsRefused) {
  const at::Tensor memory = at::ones({4});
  const at::Tensor leaf = at::ones({4}).requires_grad_();
  const auto refilled = [&] {
    at::Tensor tensor = detached_alias(memory);
    tensor.mul_(leaf);
    return tensor;
  };
  (void)leave({refilled()}, {2});
  EXPECT_THAT(
      [&] { leave({refilled()}, {2}); },
      ThrowsMessage<c10::Error>(HasSubstr("layer 3 ('relu') returned a tensor in the memory "
                                          "of one that it had returned for an earlier")));
  handed_over_.clear();
  EXPECT_NO_THROW(leave({refilled()}, {2})) << "in the next run";
  plan_.record = false;
  EXPECT_NO_THROW(leave({refilled()}, {2}));
}

TEST_F(LeaveTest, TheSameMemoryMayLeaveAgainAsItWas) {
  const at::Tensor tensor = computed();
  (void)leave({tensor}, {2});
  EXPECT_NO_THROW(leave({tensor}, {2}));
}

}  // namespace
}  // namespace gpipe::internal
