#include "balance/costs/layer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;

TEST(LayerMemory, WhatIsLeftWhenBackwardBeginsIsKept) {
  LayerMemory memory(2, c10::kCPU);
  memory.begin_forward(0);
  memory.on_allocate(1, c10::kCPU, 100);  // the output of layer 0, which layer 1 frees
  memory.on_allocate(2, c10::kCPU, 10);   // what layer 0 keeps until its backward
  memory.on_allocate(3, c10::kCPU, 1);    // workspace, freed at once
  memory.on_free(3);
  memory.end_forward(0);
  memory.begin_forward(1);
  memory.on_allocate(4, c10::kCPU, 1000);
  memory.on_free(1);
  memory.end_forward(1);
  memory.begin_backward(1);
  memory.on_free(4);
  memory.end_backward(1);
  memory.begin_backward(0);
  memory.on_free(2);
  memory.end_backward(0);
  EXPECT_THAT(memory.kept(), ElementsAre(10, 1000));
  EXPECT_THAT(memory.workspace(), ElementsAre(101, 0));
}

TEST(LayerMemory, WorkspaceOfABackwardIsWhatWasTakenSinceTheForwards) {
  LayerMemory memory(2, c10::kCPU);
  for (int layer = 0; layer < 2; ++layer) {
    memory.begin_forward(layer);
    memory.end_forward(layer);
  }
  memory.on_allocate(1, c10::kCPU, 100);  // the loss's gradient
  memory.begin_backward(1);
  memory.on_allocate(2, c10::kCPU, 20);
  memory.on_free(1);
  memory.on_allocate(3, c10::kCPU, 3);
  memory.on_free(3);
  memory.end_backward(1);
  memory.begin_backward(0);
  memory.on_allocate(4, c10::kCPU, 4);
  memory.end_backward(0);
  EXPECT_THAT(memory.kept(), ElementsAre(0, 0));
  EXPECT_THAT(memory.workspace(), ElementsAre(24, 120));
}

TEST(LayerMemory, WhatAHalfOfWeightsGivesBackHasWaitedForIt) {
  LayerMemory memory(2, c10::kCPU);
  memory.begin_forward(0);
  memory.on_allocate(1, c10::kCPU, 100);
  memory.on_allocate(2, c10::kCPU, 10);
  memory.end_forward(0);
  memory.begin_forward(1);
  memory.end_forward(1);
  memory.begin_backward(1);
  memory.on_allocate(3, c10::kCPU, 1000);  // a gradient that layer 1's weights need
  memory.end_backward(1);
  memory.begin_backward(0);
  memory.on_free(2);
  memory.end_backward(0);
  memory.begin_weights(1);
  memory.on_allocate(4, c10::kCPU, 10000);  // new, so it does not count as waiting
  memory.on_free(4);
  memory.on_free(3);
  memory.end_weights(1);
  memory.begin_weights(0);
  memory.on_allocate(5, c10::kCPU, 10000);
  memory.on_free(1);
  memory.end_weights(0);
  memory.on_free(5);
  EXPECT_THAT(memory.waiting(), ElementsAre(100, 1000));
  EXPECT_THAT(memory.kept(), ElementsAre(110, 0));
}

TEST(LayerMemory, OtherDevicesThreadsAndTimesDoNotCount) {
  LayerMemory memory(1, c10::kMeta);
  memory.begin_forward(0);
  memory.on_allocate(1, c10::kCPU, 1);
  memory.on_allocate(2, c10::Device(c10::kMeta, 0), 2);
  std::thread([&] { memory.on_allocate(3, c10::kMeta, 4); }).join();
  memory.end_forward(0);
  memory.on_free(3);
  memory.on_free(99);
  memory.begin_backward(0);
  memory.end_backward(0);
  EXPECT_THAT(memory.kept(), ElementsAre(2));
  EXPECT_THAT(memory.workspace(), ElementsAre(0));
}

}  // namespace
}  // namespace gpipe::balance
