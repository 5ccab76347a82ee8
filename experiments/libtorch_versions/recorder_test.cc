#include "experiments/libtorch_versions/recorder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "gpipe/testing/autocast_scope.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::experiments {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Not;

std::vector<std::string> operators(const Recorder& recorder) {
  std::vector<std::string> names;
  for (const Call& call : recorder.recording().calls) names.push_back(call.op + " " + call.type);
  return names;
}

TEST(Recorder, TakesWhatComputesForwardAndBackward) {
  Recorder recorder(6);
  const at::Tensor weight = at::ones({3, 4}).requires_grad_();
  {
    const Recorder::Scope scope(recorder, "test");
    at::linear(at::ones({2, 4}), weight, at::ones({3})).sum().backward();
  }
  EXPECT_THAT(operators(recorder),
              AllOf(Contains("aten::addmm float32"), Contains("aten::mm float32"),
                    Not(Contains("aten::linear float32")), Not(Contains("aten::t float32"))));
  const size_t before = recorder.recording().calls.size();
  at::ones({2}).neg();
  EXPECT_EQ(recorder.recording().calls.size(), before) << "outside the scope";
}

TEST(Recorder, TakesOneOfCallsThatDifferInValues) {
  Recorder recorder(2);
  const at::Tensor x = at::ones({2});
  const Recorder::Scope scope(recorder, "test");
  x.neg_();
  x.neg_();
  x.to(at::kDouble).neg_();
  for (int64_t size = 3; size < 9; ++size) at::ones({size}).neg_();
  std::vector<std::string> all = operators(recorder);
  EXPECT_EQ(std::count(all.begin(), all.end(), "aten::neg_ float32"), 2);
  EXPECT_EQ(std::count(all.begin(), all.end(), "aten::neg_ float64"), 1);
  const auto first =
      std::find_if(recorder.recording().calls.begin(), recorder.recording().calls.end(),
                   [](const Call& call) { return call.op == "aten::neg_"; });
  EXPECT_THAT(first->arguments[0].toTensor(), testing::EqualsBitwise(at::ones({2})))
      << "the recording must keep the values from before the in-place operator";
}

TEST(Recorder, TakesTheTypeThatAutocastComputesIn) {
  Recorder recorder(6);
  const Recorder::Scope scope(recorder, "test");
  const testing::AutocastScope autocast(c10::kCPU, at::kBFloat16);
  at::ones({2, 2}).mm(at::ones({2, 2}));
  EXPECT_THAT(operators(recorder),
              AllOf(Contains("aten::mm bfloat16"), Not(Contains("aten::mm float32"))));
}

TEST(Recorder, SeesItsThreadAlone) {
  Recorder recorder(6);
  const Recorder::Scope scope(recorder, "test");
  std::thread([] { at::ones({2}).neg_(); }).join();
  EXPECT_THAT(operators(recorder), ::testing::IsEmpty());
}

TEST(Recorder, NamesWhatItCannotCopy) {
  Recorder recorder(6);
  const at::Tensor sparse = at::ones({2}).to_sparse();
  const Recorder::Scope scope(recorder, "test");
  sparse.neg();
  EXPECT_THAT(recorder.left_out(), Contains("aten::neg"));
}

}  // namespace
}  // namespace gpipe::experiments
