#include "experiments/libtorch_versions/calls.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "gpipe/testing/bitwise.h"

namespace gpipe::experiments {
namespace {

using c10::IValue;
using testing::EqualsBitwise;

TEST(OwnCopies, KeepStridesAndWhatSharesMemory) {
  const at::Tensor x = at::arange(100, at::kFloat).view({10, 10});
  const at::Tensor view = x.t().slice(1, 4, 8);
  const at::Tensor row = at::ones({1}).expand({3});
  const auto copies = own_copies({x[5], view, row});
  EXPECT_THAT(copies[0].toTensor(), EqualsBitwise(x[5]));
  EXPECT_THAT(copies[1].toTensor(), EqualsBitwise(view));
  EXPECT_EQ(copies[1].toTensor().strides(), view.strides());
  EXPECT_EQ(copies[2].toTensor().strides(), row.strides());
  copies[0].toTensor().zero_();
  EXPECT_THAT(copies[1].toTensor().select(1, 1), EqualsBitwise(at::zeros({10})));
  EXPECT_EQ(x[5][1].item<float>(), 51) << "the copy must not share memory with x";
}

TEST(OwnCopies, HaveAFormForFiles) {
  at::Tensor number = at::ones({}, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  c10::List<std::optional<at::Tensor>> indices({std::nullopt, at::ones({2}, at::kLong)});
  const auto copies = own_copies({at::Tensor(), number, indices, IValue(3)});
  EXPECT_TRUE(copies[0].isNone());
  EXPECT_EQ(copies[1].toDouble(), 1);
  ASSERT_TRUE(copies[2].isTuple());
  EXPECT_TRUE(copies[2].toTupleRef().elements()[0].isNone());
  EXPECT_TRUE(copies[2].toTupleRef().elements()[1].isTensor());
  EXPECT_EQ(copies[3].toInt(), 3);
}

TEST(OwnCopies, CannotBeMadeOfSparseTensors) {
  EXPECT_TRUE(can_copy({at::ones({2}), IValue(1.5)}));
  EXPECT_FALSE(can_copy({at::ones({2}).to_sparse()}));
}

TEST(Files, GiveBackWhatTheyWereGiven) {
  const std::string path = ::testing::TempDir() + "/calls.pt";
  const at::Tensor x = at::arange(6, at::kBFloat16).view({2, 3}).t();
  save({"2.0.0", {{"aten::neg", "bfloat16", "test", {"self"}, own_copies({x})}}}, path);
  std::string checksum;
  const Recording recording = load_recording(path, checksum);
  EXPECT_NE(checksum, "");
  ASSERT_EQ(recording.calls.size(), 1u);
  EXPECT_EQ(recording.calls[0].op, "aten::neg");
  EXPECT_THAT(recording.calls[0].names, ::testing::ElementsAre("self"));
  EXPECT_THAT(recording.calls[0].arguments[0].toTensor(), EqualsBitwise(x));
  EXPECT_EQ(recording.calls[0].arguments[0].toTensor().strides(), x.strides());
  EXPECT_THROW(load_replays(path), std::invalid_argument);

  save({"2.0.0", "AVX2", "2.0.0-1", {"aten::neg"}, {"bfloat16"}, {{2, {{"", {-x, {}}}}}}}, path);
  const Replays replays = load_replays(path);
  EXPECT_EQ(replays.capability, "AVX2");
  ASSERT_EQ(replays.runs.size(), 1u);
  EXPECT_EQ(replays.runs[0].threads, 2);
  EXPECT_FALSE(replays.runs[0].results[0].tensors[1].defined());
  EXPECT_THAT(replays.runs[0].results[0].tensors[0], EqualsBitwise(-x));
}

TEST(Files, SayWhatIsWrong) {
  EXPECT_THROW(load_replays("/nowhere/results.pt"), std::runtime_error);
  const std::string path = ::testing::TempDir() + "/text.pt";
  std::ofstream(path) << "text";
  try {
    load_replays(path);
    FAIL() << "read";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("not a file that --results writes"));
  }
}

}  // namespace
}  // namespace gpipe::experiments
