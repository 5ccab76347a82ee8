#include "experiments/libtorch_versions/replay.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "experiments/libtorch_versions/recorder.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::experiments {
namespace {

using testing::EqualsBitwise;

at::Tensor replayed(const Call& call) {
  const Result result = replay(call);
  EXPECT_EQ(result.failure, "");
  return result.tensors.at(0);
}

// Replays what a Recorder has recorded: calls with all kinds of arguments, from views to lists of
// tensors that may be missing.
TEST(Replay, MakesRecordedCallsAgain) {
  Recorder recorder(6);
  const at::Tensor x = at::rand({4, 4}).requires_grad_();
  {
    const Recorder::Scope scope(recorder, "test");
    const at::Tensor rows = x.index({at::arange(3), at::arange(3)});
    at::cat({rows, rows * 2.5}).softmax(0).sum().backward();
    at::dropout(x, 0.5, true).mean();
    at::ones({3}).add_(1);
  }
  const Replay run = replay(recorder.recording(), 1);
  ASSERT_EQ(run.results.size(), recorder.recording().calls.size());
  for (size_t k = 0; k < run.results.size(); ++k) {
    EXPECT_EQ(run.results[k].failure, "") << recorder.recording().calls[k].op;
    EXPECT_FALSE(run.results[k].tensors.empty()) << recorder.recording().calls[k].op;
    for (const at::Tensor& tensor : run.results[k].tensors) EXPECT_TRUE(tensor.defined());
  }
}

TEST(Replay, ChangesCopies) {
  const at::Tensor x = at::ones({3});
  const Call call{"aten::mul_.Tensor", "float32", "", {"self", "other"}, {x, 2.0}};
  EXPECT_THAT(replayed(call), EqualsBitwise(x * 2.0));
  EXPECT_THAT(x, EqualsBitwise(at::ones({3})));
}

TEST(Replay, ANumberDoesNotChooseTheType) {
  const at::Tensor one = at::ones({}, at::kBFloat16);
  const Call call{"aten::mul.Tensor", "bfloat16", "", {"self", "other"}, {one, 2.0}};
  EXPECT_EQ(replayed(call).scalar_type(), at::kBFloat16);
}

TEST(Replay, FindsArgumentsByTheirNames) {
  const at::Tensor x = at::ones({2});
  // The schema is add(self, other, *, alpha=1), so `other` may come first and `alpha` may be
  // missing.
  EXPECT_THAT(replayed({"aten::add.Tensor", "", "", {"other", "self"}, {x, x}}),
              EqualsBitwise(x + x));
  EXPECT_EQ(replay({"aten::add.Tensor", "", "", {"self"}, {x}}).failure,
            "the operator needs an argument other");
  EXPECT_THAT(replayed({"aten::sub.Tensor", "", "", {"former", "other"}, {x * 3, x}}),
              EqualsBitwise(x * 2));
  EXPECT_EQ(replay({"aten::neg", "", "", {"self", "more"}, {x, x}}).failure,
            "the operator has no argument more");
}

TEST(Replay, SaysWhatCannotBeCalled) {
  EXPECT_EQ(replay({"aten::no_such_thing", "", "", {}, {}}).failure, "there is no such operator");
  const Call wrong{"aten::mm", "", "", {"self", "mat2"}, {at::ones({2, 3}), at::ones({2, 3})}};
  EXPECT_THAT(replay(wrong).failure, ::testing::HasSubstr("cannot be multiplied"));
}

}  // namespace
}  // namespace gpipe::experiments
