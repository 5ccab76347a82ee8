#include "balance/step/cell_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;

constexpr ActionKind kKinds[] = {ActionKind::kForward, ActionKind::kBackward,
                                 ActionKind::kInputGradient, ActionKind::kWeightGradient};

StageCosts stage() {
  StageCosts stage;
  stage.forward = 1;
  stage.backward = 2;
  stage.input_gradient = 3;
  stage.weight_gradient = 4;
  stage.loss_forward = 5;
  stage.loss_backward = 6;
  stage.received = 100;
  stage.kept = 10;
  stage.waiting = 1;
  return stage;
}

// The values of `of` for the actions F, B, I and W.
template <typename Of>
std::vector<double> by_kind(const Of& of) {
  std::vector<double> values;
  for (const ActionKind kind : kKinds) values.push_back(static_cast<double>(of(kind)));
  return values;
}

TEST(CellCosts, EachKindHasItsTimes) {
  EXPECT_THAT(by_kind([](ActionKind kind) { return layer_seconds(stage(), kind); }),
              ElementsAre(1, 2, 3, 4));
  // The loss's backward comes before all other backwards, so it belongs to B and I and not to W.
  EXPECT_THAT(by_kind([](ActionKind kind) { return loss_seconds(stage(), kind); }),
              ElementsAre(5, 6, 6, 0));
  EXPECT_THAT(by_kind(begins_backward), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(by_kind(is_on_the_way), ElementsAre(1, 1, 1, 0));
}

std::vector<double> held(bool recomputed, HeldParts CellMemory::*when) {
  return by_kind(
      [&](ActionKind kind) { return (cell_memory(kind, recomputed).*when).bytes(stage()); });
}

TEST(CellCosts, ACellHoldsWhatArrivedAndWhatItKeepsUntilItsBackward) {
  EXPECT_THAT(held(false, &CellMemory::before), ElementsAre(0, 110, 110, 1));
  EXPECT_THAT(held(false, &CellMemory::during), ElementsAre(110, 110, 110, 1));
  EXPECT_THAT(held(false, &CellMemory::after), ElementsAre(110, 0, 1, 0));
}

TEST(CellCosts, ARecomputedCellKeepsOnlyDuringItsBackward) {
  EXPECT_THAT(held(true, &CellMemory::before), ElementsAre(0, 100, 100, 1));
  EXPECT_THAT(held(true, &CellMemory::during), ElementsAre(100, 110, 110, 1));
  EXPECT_THAT(held(true, &CellMemory::after), ElementsAre(100, 0, 1, 0));
}

// The stage receives 100 bytes, keeps 10 and has 1 waiting; see stage().
TEST(CellCosts, WhatGoesToTheHostIsWhatTheCellMade) {
  StageCosts costs = stage();
  costs.layers = {2, 3};
  EXPECT_EQ(offloaded_bytes(costs, ActionKind::kForward, /*recomputed=*/false), 10);
  costs.sent = 4;  // other stages get it
  EXPECT_EQ(offloaded_bytes(costs, ActionKind::kForward, /*recomputed=*/false), 6);
  costs.returned = 5;  // the caller gets it
  EXPECT_EQ(offloaded_bytes(costs, ActionKind::kForward, /*recomputed=*/false), 1);
  costs.returned = 0;
  costs.sent = 11;
  EXPECT_EQ(offloaded_bytes(costs, ActionKind::kForward, /*recomputed=*/false), 0);
  EXPECT_EQ(offloaded_bytes(costs, ActionKind::kForward, /*recomputed=*/true), 100);
  EXPECT_EQ(offloaded_bytes(costs, ActionKind::kInputGradient, false), 0);
  costs.waiting = 120;
  EXPECT_EQ(offloaded_bytes(costs, ActionKind::kInputGradient, false), 120 - 100 - 11);
  costs.layers = {0, 1};
  EXPECT_EQ(offloaded_bytes(costs, ActionKind::kForward, /*recomputed=*/true), 0)
      << "the caller's inputs";
}

}  // namespace
}  // namespace gpipe::balance
