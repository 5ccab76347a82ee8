#include "gpipe/internal/model/given_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <limits>
#include <string>
#include <vector>

#include "skip/skippable.h"

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A layer that stashes its input times one factor, and returns it times another one.
struct StashImpl : torch::nn::Module, skip::Skippable {
  StashImpl(double stashed, double returned)
      : Skippable({"a"}, {}), stashed(stashed), returned(returned) {}
  at::Tensor forward(const at::Tensor& x) {
    stash("a", x * stashed);
    return x * returned;
  }
  double stashed;
  double returned;
};
TORCH_MODULE(Stash);

// Runs such a layer, and holds what it has given.
struct Given {
  Layer layer;
  skip::Tracker tracker;
  torch::nn::AnyValue output;

  Given(double stashed, double returned) : Given(Stash(stashed, returned)) {}
  explicit Given(Stash module)
      : layer{torch::nn::AnyModule(module), "stash", 0, skip::CallPlan(*module)},
        output(at::Tensor()) {
    const skip::TrackerScope scope(tracker);
    skip::CallScope call(layer.skips);
    output = layer.module.any_forward(at::ones({2}));
    call.finish();
  }
};

TEST(GivenTensors, AreTheStashesAndThenTheOutput) {
  Given given(2, 3);
  const std::vector<const at::Tensor*> tensors =
      given_tensors(given.layer, given.output, given.tracker);
  ASSERT_THAT(tensors, SizeIs(2));
  EXPECT_EQ(tensors[0]->sum().item<double>(), 4);
  EXPECT_EQ(tensors[1]->sum().item<double>(), 6);
}

TEST(GivenTensors, AreCheckedByTheirNames) {
  const auto error = [](double stashed, double returned) -> std::string {
    Given given(stashed, returned);
    try {
      check_finite_given(given.layer, given.output, given.tracker);
    } catch (const c10::ValueError& thrown) {
      return thrown.what_without_backtrace();
    }
    return "";
  };
  EXPECT_EQ(error(2, 3), "");
  EXPECT_THAT(error(kInfinity, 3), HasSubstr("the skip 'a'"));
  EXPECT_THAT(error(2, kInfinity), HasSubstr("the output of a layer"));
}

}  // namespace
}  // namespace gpipe::internal
