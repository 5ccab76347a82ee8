#include "gpipe/internal/backward/walk_visitor.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <thread>

namespace gpipe::internal {
namespace {

NodeRange from_now() {
  return {at::RecordFunction::currentThreadId(), at::sequence_number::peek()};
}

TEST(NodeRange, HasWhatItsThreadMadeFromThenOn) {
  const at::Tensor before = torch::ones({1}).requires_grad_() * 2;
  const NodeRange range = from_now();
  const at::Tensor after = before * 2;
  at::Tensor elsewhere;
  std::thread([&] {
    elsewhere = torch::ones({1}).requires_grad_() * 2;
    // A node of another thread is not part of the range, even if its sequence number lies within
    // it.
    while (elsewhere.grad_fn()->sequence_nr() < range.begin) elsewhere = elsewhere * 2;
  }).join();
  EXPECT_FALSE(range.contains(*before.grad_fn()));
  EXPECT_TRUE(range.contains(*after.grad_fn()));
  EXPECT_FALSE(range.contains(*elsewhere.grad_fn()));
}

TEST(WalkVisitor, AsItIsAllLeavesAccumulate) {
  WalkVisitor visitor;
  EXPECT_EQ(visitor.sum_of(nullptr, torch::ones({1})), nullptr);
  EXPECT_EQ(visitor.in_place_of_grad(nullptr, torch::ones({1})), nullptr);
  EXPECT_NE(WalkVisitor::discarded(), nullptr);
  EXPECT_FALSE(visitor.progress.found);
  EXPECT_EQ(visitor.progress.node, WalkProgress::kNone);
}

}  // namespace
}  // namespace gpipe::internal
