#include "gpipe/internal/boundary/staying.h"

#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string layer() { return "layer 3 ('relu')"; }

TEST(ReadOnlyInputsTest, AChangeInPlaceIsTheLayersFault) {
  at::Tensor watched = at::ones({2, 2});
  at::Tensor other = at::ones({2});
  ReadOnlyInputs inputs;
  inputs.watch(watched);
  other.add_(1);
  EXPECT_NO_THROW(inputs.check(layer));
  watched.select(0, 1).add_(1);  // through a view
  EXPECT_THAT([&] { inputs.check(layer); },
              ThrowsMessage<c10::Error>(HasSubstr("layer 3 ('relu') changed a tensor in place")));
}

TEST(ReadOnlyInputsTest, AChangeThroughAnAliasIsSeenAndTheTensorNeedNotLive) {
  at::Tensor tensor = at::ones({2});
  const at::Tensor alias = detached_alias(tensor);
  ReadOnlyInputs inputs;
  inputs.watch(tensor);
  tensor = at::Tensor();
  EXPECT_NO_THROW(inputs.check(layer));
  alias.add_(1);
  EXPECT_THROW(inputs.check(layer), c10::Error);
}

TEST(ReadOnlyInputsTest, TensorsOfInferenceKeepNoCount) {
  c10::InferenceMode inference;
  at::Tensor tensor = at::ones({2});
  ReadOnlyInputs inputs;
  inputs.watch(tensor);
  tensor.add_(1);
  EXPECT_NO_THROW(inputs.check(layer));
}

TEST(CheckKeptTest, AKeptInputMustStayAsItArrived) {
  std::vector<Packet> inputs(2);
  for (Packet& packet : inputs) {
    packet.items.emplace_back();
    packet.items[0].tensor = at::ones({2});
    packet.items[0].tensor.add_(1);
    packet.items[0].mark_version();
  }
  EXPECT_NO_THROW(check_kept(2, inputs, "meanwhile", layer));
  detached_alias(inputs[1].items[0].tensor).add_(1);
  EXPECT_THAT(
      [&] { check_kept(2, inputs, "meanwhile", layer); },
      ThrowsMessage<c10::Error>(HasSubstr(
          "layer 3 ('relu') changed an input of stage 2 in place meanwhile; its recompute")));
}

}  // namespace
}  // namespace gpipe::internal
