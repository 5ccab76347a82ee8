#include "gpipe/internal/cell/layer_numbers.h"

#include <ATen/SequenceNumber.h>
#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

// Makes the sequence number of a node, as autograd does on this thread.
uint64_t next_node() { return at::sequence_number::get_and_increment(); }

void expect_place(const LayerNumbers& numbers, uint64_t node, int64_t layer, uint64_t number) {
  const LayerNumbers::Place place = numbers.place_of(node);
  EXPECT_EQ(place.layer, layer);
  EXPECT_EQ(place.node, number);
}

int64_t reached(const LayerNumbers& numbers, uint64_t node) {
  WalkProgress progress;
  progress.found = true;
  progress.node = node;
  return numbers.reached(progress);
}

TEST(LayerNumbers, CountTheNodesOfEachLayer) {
  const uint64_t before = next_node();
  LayerNumbers numbers;
  numbers.begin();
  const uint64_t first = next_node();
  const uint64_t second = next_node();
  numbers.end_layer();
  const uint64_t third = next_node();
  numbers.end_layer();
  EXPECT_EQ(numbers.last(), 1);
  expect_place(numbers, before, 0, 0);
  expect_place(numbers, first, 0, 1);
  expect_place(numbers, second, 0, 2);
  expect_place(numbers, third, 1, 1);
  EXPECT_EQ(reached(numbers, before), -1);
  EXPECT_EQ(reached(numbers, second), 0);
  EXPECT_EQ(reached(numbers, third), 1);
}

TEST(LayerNumbers, HaveALossBehindTheLayers) {
  LayerNumbers numbers;
  numbers.begin();
  (void)next_node();
  numbers.end_layer();
  numbers.add_loss();
  const uint64_t of_loss = next_node();
  EXPECT_EQ(numbers.last(), 1);
  expect_place(numbers, of_loss, 1, 1);
  EXPECT_EQ(reached(numbers, of_loss), 1);
}

TEST(LayerNumbers, BlameALossAloneForEverything) {
  const uint64_t before = next_node();
  LayerNumbers numbers;
  numbers.begin_loss(3);
  const uint64_t of_loss = next_node();
  EXPECT_EQ(numbers.last(), 3);
  expect_place(numbers, of_loss, 3, 1);
  EXPECT_EQ(reached(numbers, before), 3);
  EXPECT_EQ(reached(numbers, of_loss), 3);
  EXPECT_EQ(numbers.reached(WalkProgress()), 3);
}

// A replayed node stands for all layers. Its place must be one that exists, although messages name
// no layer.
TEST(LayerNumbers, GiveANodeOfSeveralLayersAPlaceInTheFirst) {
  LayerNumbers numbers;
  numbers.begin();
  (void)next_node();
  const uint64_t of_all = next_node();
  numbers.end_layers_as_one(3);
  expect_place(numbers, of_all, 0, 2);
  EXPECT_EQ(reached(numbers, of_all), -1);
}

TEST(LayerNumbers, KnowTheOnlyLayerBeforeAWalkHasFoundItsNodes) {
  LayerNumbers numbers;
  numbers.begin();
  numbers.end_layer();
  WalkProgress progress;
  EXPECT_EQ(numbers.reached(progress), 0);
  progress.found = true;
  EXPECT_EQ(numbers.reached(progress), -1);
  numbers.end_layer();
  EXPECT_EQ(numbers.reached(WalkProgress()), -1);
}

}  // namespace
}  // namespace gpipe::internal
