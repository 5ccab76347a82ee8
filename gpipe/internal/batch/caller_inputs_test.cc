#include "gpipe/internal/batch/caller_inputs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Packet packet_of(const std::vector<at::Tensor>& tensors) {
  Packet packet;
  packet.kind = ValueKind::kTensors;
  for (const at::Tensor& tensor : tensors) {
    packet.items.emplace_back();
    packet.items.back().tensor = tensor;
  }
  return packet;
}

// The inputs that consist of these tensors, each of four rows.
CallerInputs inputs_of(const std::vector<at::Tensor>& tensors, int64_t chunks = 2,
                       bool record = true) {
  return {packet_of(tensors), MiniBatch(4, chunks), record};
}

TEST(CallerInputsTest, MicroBatchesLieInTheCallersTensors) {
  const at::Tensor a = at::randn({4, 3}).requires_grad_();
  const at::Tensor b = at::randn({4});
  Packet whole = packet_of({a, at::Tensor(), b});
  whole.kind = ValueKind::kTuple3;
  whole.items[0].needs_grad = true;
  const CallerInputs inputs(whole, MiniBatch(4, 2), /*record=*/true);
  for (int64_t i = 0; i < 2; ++i) {
    const Packet packet = inputs.micro_batch(i);
    EXPECT_EQ(packet.kind, ValueKind::kTuple3);
    ASSERT_EQ(packet.items.size(), 3u);
    EXPECT_THAT(packet.items[0].tensor, EqualsBitwise(a.detach().narrow(0, 2 * i, 2)));
    EXPECT_THAT(packet.items[2].tensor, EqualsBitwise(b.narrow(0, 2 * i, 2)));
    EXPECT_FALSE(packet.items[1].tensor.defined());
    EXPECT_EQ(storage_of(packet.items[0].tensor), storage_of(a));
    EXPECT_FALSE(packet.items[0].tensor.requires_grad());
    EXPECT_TRUE(packet.items[0].needs_grad);
    EXPECT_FALSE(packet.items[2].needs_grad);
    for (const Item& item : packet.items) EXPECT_EQ(item.version, version_of(item.tensor));
  }
}

TEST(CallerInputsTest, AChangeOfAMicroBatchLeavesTheOthersAsTheyWere) {
  const at::Tensor x = at::randn({4, 3});
  const int64_t before = version_of(x);
  CallerInputs inputs = inputs_of({x});
  const at::Tensor first = inputs.micro_batch(0).items[0].tensor;
  const Item second = inputs.micro_batch(1).items[0];
  first.zero_();
  EXPECT_THAT(x.narrow(0, 0, 2), EqualsBitwise(first))
      << "a micro-batch is a view of the caller's tensor, so the change is seen there";
  EXPECT_EQ(version_of(second.tensor), second.version);
  EXPECT_EQ(version_of(inputs.micro_batch(0).items[0].tensor), version_of(first))
      << "one micro-batch has one counter";
  EXPECT_EQ(version_of(x), before) << "counted after the forward";
}

TEST(CallerInputsTest, TheCallersCountersTellAfterTheForwardWhatLayersChanged) {
  for (int64_t chunks : {1, 2, 4}) {
    const at::Tensor changed = at::randn({4});
    const at::Tensor left_alone = at::randn({4});
    const int64_t before = version_of(changed);
    const int64_t of_other = version_of(left_alone);
    CallerInputs inputs = inputs_of({left_alone, changed}, chunks);
    inputs.micro_batch(chunks - 1).items[1].tensor.zero_();
    inputs.finish_forward();
    EXPECT_GT(version_of(changed), before) << chunks << " chunks";
    EXPECT_EQ(version_of(left_alone), of_other) << chunks << " chunks";
    EXPECT_EQ(inputs.changed_by_caller(), std::nullopt)
        << "the tensor was changed by a layer, not by the caller";
  }
}

TEST(CallerInputsTest, TheFirstInputThatTheCallerChangedIsNamed) {
  const at::Tensor a = at::randn({4});
  const at::Tensor b = at::randn({4});
  const at::Tensor c = at::randn({4});
  CallerInputs inputs = inputs_of({at::Tensor(), a, b, c});
  b.zero_();
  inputs.finish_forward();
  EXPECT_EQ(inputs.changed_by_caller(), std::nullopt)
      << "the change was made before the end of the forward";
  c.zero_();
  b.zero_();
  EXPECT_EQ(inputs.changed_by_caller(), std::optional<size_t>(2));
  a.zero_();
  EXPECT_EQ(inputs.changed_by_caller(), std::optional<size_t>(1)) << "a change after a backward";
}

// A cell that has saved every micro-batch of both inputs.
struct Saved {
  std::vector<at::Tensor> outputs[2];

  explicit Saved(const CallerInputs& inputs) {
    const at::Tensor weight = at::randn({2}).requires_grad_();
    for (int64_t i = 0; i < 2; ++i) {
      const Packet packet = inputs.micro_batch(i);
      for (size_t k = 0; k < 2; ++k) {
        outputs[k].push_back((packet.items[k].tensor * weight).sum());
      }
    }
  }
};

TEST(CallerInputsTest, AutogradNoticesACallersChangeInEveryMicroBatch) {
  const at::Tensor a = at::randn({4});
  const at::Tensor b = at::randn({4});
  CallerInputs inputs = inputs_of({a, b});
  const Saved saved(inputs);
  inputs.finish_forward();
  b.narrow(0, 0, 1).zero_();
  EXPECT_EQ(inputs.changed_by_caller(), std::optional<size_t>(1));
  for (const at::Tensor& output : saved.outputs[0]) EXPECT_NO_THROW(output.backward());
  for (const at::Tensor& output : saved.outputs[1]) {
    EXPECT_THAT([&] { output.backward(); },
                ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation")));
  }
}

TEST(CallerInputsTest, InputsOverOneMemoryHaveOneCounter) {
  const at::Tensor base = at::randn({4, 3});
  const at::Tensor left = base.narrow(1, 0, 1);
  const at::Tensor right = base.narrow(1, 1, 2);
  CallerInputs inputs = inputs_of({left, right});
  const Packet packet = inputs.micro_batch(0);
  packet.items[1].tensor.zero_();
  EXPECT_EQ(version_of(packet.items[0].tensor), version_of(packet.items[1].tensor));
  const int64_t before = version_of(base);
  inputs.finish_forward();
  EXPECT_GT(version_of(base), before);
  EXPECT_EQ(inputs.changed_by_caller(), std::nullopt);
  right.zero_();
  EXPECT_EQ(inputs.changed_by_caller(), std::optional<size_t>(0));
}

TEST(CallerInputsTest, ATensorGivenTwiceStaysASingleTensor) {
  const at::Tensor x = at::randn({4});
  const Packet packet = inputs_of({x, at::Tensor(), x, at::Tensor()}).micro_batch(1);
  EXPECT_TRUE(packet.items[2].tensor.is_same(packet.items[0].tensor));
  EXPECT_FALSE(packet.items[0].read_only);
  EXPECT_FALSE(packet.items[2].read_only);
  EXPECT_FALSE(packet.items[3].tensor.defined());
}

TEST(CallerInputsTest, OverlappingTensorsAreReadOnlyWhereGradientsAreAskedFor) {
  const at::Tensor base = at::randn({4, 3});
  const std::vector<at::Tensor> tensors = {base.narrow(1, 0, 2), at::randn({4}),
                                           base.narrow(1, 1, 2)};
  const Packet recorded = inputs_of(tensors).micro_batch(0);
  EXPECT_TRUE(recorded.items[0].read_only);
  EXPECT_FALSE(recorded.items[1].read_only);
  EXPECT_TRUE(recorded.items[2].read_only);
  const std::vector<at::Tensor> disjoint = {base.narrow(1, 0, 1), base.narrow(1, 1, 2)};
  for (const Item& item : inputs_of(disjoint).micro_batch(0).items) EXPECT_FALSE(item.read_only);
  for (const Item& item : inputs_of(tensors, 2, /*record=*/false).micro_batch(0).items) {
    EXPECT_FALSE(item.read_only);
  }
}

TEST(CallerInputsTest, TheTensorsAreReleasedAfterTheForward) {
  at::Tensor x = at::randn({4});
  const auto memory = x.storage().getWeakStorageImpl();
  CallerInputs inputs = inputs_of({x});
  x = at::Tensor();
  EXPECT_FALSE(memory.expired());
  (void)inputs.micro_batch(0);
  inputs.finish_forward();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(inputs.changed_by_caller(), std::nullopt);
}

TEST(CallerInputsTest, InferenceTensorsHaveNoCounter) {
  const c10::InferenceMode guard;
  const at::Tensor x = at::randn({4});
  CallerInputs inputs = inputs_of({x}, 2, /*record=*/false);
  const at::Tensor second = inputs.micro_batch(1).items[0].tensor;
  EXPECT_THAT(second, EqualsBitwise(x.narrow(0, 2, 2)));
  second.zero_();
  inputs.finish_forward();
  x.zero_();
  EXPECT_EQ(inputs.changed_by_caller(), std::nullopt);
}

TEST(CallerInputsTest, TensorsWithoutStorageHaveACounterEach) {
  const at::Tensor a = at::eye(4).to_sparse();
  const at::Tensor b = at::eye(4).to_sparse();
  CallerInputs inputs = inputs_of({a, b}, /*chunks=*/1);
  EXPECT_TRUE(inputs.micro_batch(0).items[1].tensor.is_sparse());
  inputs.finish_forward();
  b.mul_(2);
  EXPECT_EQ(inputs.changed_by_caller(), std::optional<size_t>(1));
}

}  // namespace
}  // namespace gpipe::internal
