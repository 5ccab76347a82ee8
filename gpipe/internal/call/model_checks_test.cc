#include "gpipe/internal/call/model_checks.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/options.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

template <typename Error = c10::ValueError, typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ListText, IsInBraces) {
  EXPECT_EQ(list_text({}), "{}");
  EXPECT_EQ(list_text({-3}), "{-3}");
  EXPECT_EQ(list_text({1, 2, 30}), "{1, 2, 30}");
}

std::string refusal_of(const GPipeOptions& options) {
  return refusal([&] { check_options(options); });
}
GPipeOptions two() { return GPipeOptions({1, 1}); }

TEST(CheckOptions, AcceptsTheLeastAndTheMost) {
  EXPECT_EQ(refusal_of(two()), "");
  EXPECT_EQ(refusal_of(two().chunks(1).cpu_threads_per_stage(1)), "");
  EXPECT_EQ(refusal_of(two().chunks(kMost).cpu_threads_per_stage(1024)), "");
  for (const auto mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    EXPECT_EQ(refusal_of(two().checkpoint(mode)), "");
    EXPECT_EQ(refusal_of(two().partition_checkpoints({mode, Checkpoint::kNever})), "");
  }
}

TEST(CheckOptions, RefusesNumbersOutOfRange) {
  for (const int64_t chunks : {int64_t{0}, int64_t{-4}, -kMost - 1}) {
    EXPECT_THAT(refusal_of(two().chunks(chunks)),
                HasSubstr("chunks must be at least 1, got " + std::to_string(chunks)));
  }
  for (const int64_t threads : {int64_t{-1}, int64_t{1025}, kMost}) {
    EXPECT_THAT(refusal_of(two().cpu_threads_per_stage(threads)),
                AllOf(HasSubstr("cpu_threads_per_stage must be 0"), HasSubstr("from 1 to 1024"),
                      HasSubstr("got " + std::to_string(threads))));
  }
}

TEST(CheckOptions, RefusesModesThatThereAreNot) {
  const auto wrong = static_cast<Checkpoint>(9);
  EXPECT_THAT(refusal_of(two().checkpoint(wrong)),
              AllOf(HasSubstr("checkpoint must be one of"), HasSubstr("got the number 9")));
  EXPECT_THAT(refusal_of(two().partition_checkpoints({Checkpoint::kNever, wrong})),
              AllOf(HasSubstr("each of partition_checkpoints"), HasSubstr("got the number 9")));
}

TEST(CheckOptions, RefusesAnotherNumberOfModesThanPartitions) {
  for (const size_t modes : {1, 3}) {
    EXPECT_THAT(refusal_of(two().partition_checkpoints(
                    std::vector<Checkpoint>(modes, Checkpoint::kAlways))),
                AllOf(HasSubstr("has " + std::to_string(modes) + " modes"),
                      HasSubstr("has 2 partitions"), HasSubstr("give one mode for each")));
  }
}

TEST(CheckOptions, LeavesBalanceAndDevicesToOthers) {
  EXPECT_EQ(refusal_of(GPipeOptions(std::vector<int64_t>())), "");
  EXPECT_EQ(refusal_of(GPipeOptions({0, -1}).devices({c10::Device(c10::kCUDA, 99)})), "");
}

TEST(CheckBalance, AcceptsWhatAddsUp) {
  EXPECT_NO_THROW(check_balance({}, 0));
  EXPECT_NO_THROW(check_balance({1}, 1));
  EXPECT_NO_THROW(check_balance({2, 1, 3}, 6));
}

TEST(CheckBalance, SaysWhatDoesNotAddUpAndWhatFindsABalance) {
  auto text = [](const std::vector<int64_t>& balance, size_t layers) {
    return refusal([&] { check_balance(balance, layers); });
  };
  const auto hint = HasSubstr("balance_by_time");
  EXPECT_THAT(text({}, 3), AllOf(HasSubstr("the balance is empty"), HasSubstr("3 layers"), hint));
  EXPECT_THAT(text({1, 2}, 4),
              AllOf(HasSubstr("{1, 2} sums up to 3"), HasSubstr("4 layers"), hint));
  EXPECT_THAT(text({1, 2}, 2),
              AllOf(HasSubstr("{1, 2} sums up to 3"), HasSubstr("2 layers"), hint));
  EXPECT_THAT(text({1}, 0), HasSubstr("0 layers"));
  EXPECT_THAT(text({3, 0}, 3), AllOf(HasSubstr("at least one layer"), HasSubstr("{3, 0}"),
                                     HasSubstr("partition 1 of the balance {3, 0} has 0: leave it"),
                                     HasSubstr("torch::nn::Identity"), hint));
  EXPECT_THAT(text({-1, 4}, 3), AllOf(HasSubstr("at least one layer"), HasSubstr("{-1, 4}")));
}

TEST(CheckBalance, ASumThatDoesNotFitIsRefusedToo) {
  EXPECT_THAT(refusal([] { check_balance({kMost, 1}, 3); }), HasSubstr("more than 2^63 - 1"));
  EXPECT_THAT(refusal([] {
                check_balance({kMost, kMost, 5}, 3);
              }),
              HasSubstr("more than 2^63 - 1"));
  EXPECT_THAT(refusal([] {
                check_balance({kMost - 1, 1}, 3);
              }),
              HasSubstr("sums up to " + std::to_string(kMost)));
}

TEST(CheckLayers, RefusesNullLayersByName) {
  nn::Sequential model{nn::Tanh()};
  EXPECT_NO_THROW(check_layers(model));
  model->push_back("gone", std::shared_ptr<nn::LinearImpl>());
  EXPECT_THAT(refusal([&] { check_layers(model); }),
              AllOf(HasSubstr("the layer 'gone'"), HasSubstr("null pointer")));
  EXPECT_NO_THROW(check_layers(nn::Sequential()));
}

TEST(CheckLayers, RefusesOneObjectTwiceByBothNames) {
  const nn::Linear linear(2, 2);
  const nn::Sequential model(nn::Tanh(), linear, nn::Linear(2, 2), linear);
  EXPECT_THAT(refusal([&] { check_layers(model); }),
              AllOf(HasSubstr("the layers '1' and '3'"), HasSubstr("the same object")));
  EXPECT_NO_THROW(check_layers(nn::Sequential(nn::Tanh(), linear, nn::Tanh())));
}

// A layer that takes and returns a std::string, which cannot travel between partitions.
auto text_layer() {
  return testing::layer<std::string, std::string>([](std::string text) { return text; });
}

TEST(CheckArguments, RefusesALayerThatTakesSeveralWhereverItIs) {
  const nn::Sequential model(nn::Tanh(), nn::Bilinear(2, 2, 2));
  for (const std::vector<int64_t>& balance :
       {std::vector<int64_t>{2}, std::vector<int64_t>{1, 1}}) {
    EXPECT_THAT(
        refusal<c10::TypeError>([&] { check_arguments(model, balance); }),
        AllOf(HasSubstr("layer 1 ('1')"), HasSubstr("Bilinear"), HasSubstr("takes 2 arguments"),
              HasSubstr("Put gpipe::SeveralArguments around it")));
  }
}

TEST(CheckArguments, WhatCannotTravelIsRefusedOnlyWhereAPartitionBegins) {
  nn::Sequential model;
  model->push_back("a", nn::Tanh());
  model->push_back("b", text_layer());
  model->push_back("c", nn::Tanh());
  EXPECT_NO_THROW(check_arguments(model, {3}));
  EXPECT_NO_THROW(check_arguments(model, {2, 1}));
  for (const std::vector<int64_t>& balance :
       {std::vector<int64_t>{1, 2}, std::vector<int64_t>{1, 1, 1}}) {
    EXPECT_THAT(refusal<c10::TypeError>([&] { check_arguments(model, balance); }),
                AllOf(HasSubstr("layer 1 ('b')"), HasSubstr("string"),
                      HasSubstr("first layer of partition 1"), HasSubstr("move the cut")));
  }
  EXPECT_THAT(refusal<c10::TypeError>(
                  [] { check_arguments(nn::Sequential(text_layer(), nn::Tanh()), {2}); }),
              HasSubstr("first layer of partition 0"));
}

TEST(CheckArguments, AcceptsAllThatTravels) {
  using at::Tensor;
  using Pair = std::tuple<Tensor, Tensor>;
  using List = std::vector<Tensor>;
  const nn::Sequential model(testing::layer<Tensor, Pair>([](Tensor x) { return Pair(x, x); }),
                             testing::layer<Pair, List>([](Pair) { return List(); }),
                             testing::layer<List, Tensor>([](List) { return Tensor(); }));
  EXPECT_NO_THROW(check_arguments(model, {1, 1, 1}));
}

const std::vector<c10::Device> kTwoDevices = {c10::Device(c10::kCPU), c10::Device(c10::kMeta)};

// Names are shown in one line: a line break would break the message, too, and a log shows only a
// message's first line.
TEST(CheckSharing, ShowsNamesInOneLine) {
  nn::Linear first(2, 2);
  const auto second = testing::layer<at::Tensor, at::Tensor>([](at::Tensor x) { return x; });
  second->register_parameter("a\nb", first->weight);
  nn::Sequential model;
  model->push_back("c\nd", first);
  model->push_back("e", second);
  EXPECT_THAT(refusal([&] {
                check_sharing(model, {1, 1}, kTwoDevices);
              }),
              AllOf(HasSubstr("the parameter 'c\\x0ad.weight'"), HasSubstr("'e.a\\x0ab'")));
  model->push_back("f\ng", first);
  EXPECT_THAT(refusal([&] { check_layers(model); }),
              HasSubstr("the layers 'c\\x0ad' and 'f\\x0ag'"));
}

TEST(CheckSharing, RefusesAParameterOnTwoDevicesAndNamesBothPlaces) {
  nn::Linear first(2, 2);
  nn::Tanh inner;
  inner->register_parameter("tied", first->weight);
  const auto outer = testing::layer<at::Tensor, at::Tensor>([](at::Tensor x) { return x; });
  outer->register_module("inner", inner);
  const nn::Sequential model(nn::Tanh(), first, outer);
  EXPECT_THAT(refusal([&] {
                check_sharing(model, {2, 1}, kTwoDevices);
              }),
              AllOf(HasSubstr("the parameter '1.weight' of partition 0 on cpu"),
                    HasSubstr("'2.inner.tied' of partition 1 on meta"),
                    HasSubstr("needs both on the same device")));
  EXPECT_NO_THROW(check_sharing(model, {2, 1}, {c10::kCPU, c10::kCPU}));
  EXPECT_NO_THROW(check_sharing(model, {1, 2}, kTwoDevices)) << "within a partition";
  const std::vector<c10::Device> cpus(2, c10::kCPU);
  const StageMap two_processes(Placement::one_each(2), /*rank=*/0, /*size=*/2);
  EXPECT_NO_THROW(check_sharing(model, {2, 1}, cpus, &two_processes)) << "each has a copy";
  EXPECT_NO_THROW(check_sharing(model, {1, 2}, cpus, &two_processes)) << "within a process";
  EXPECT_THAT(refusal([&] {
                check_sharing(model, {1, 1, 1}, {c10::kCPU, c10::kMeta, c10::kCPU});
              }),
              AllOf(HasSubstr("of partition 1 on meta"), HasSubstr("of partition 2 on cpu")));
}

TEST(CheckSharing, RefusesABufferOnTwoDevices) {
  nn::BatchNorm1d first(2);
  nn::Tanh second;
  second->register_buffer("mean", first->running_mean);
  EXPECT_THAT(refusal([&] {
                check_sharing(nn::Sequential(first, second), {1, 1}, kTwoDevices);
              }),
              AllOf(HasSubstr("the buffer '0.running_mean'"), HasSubstr("'1.mean'")));
  const StageMap two_processes(Placement::one_each(2), /*rank=*/0, /*size=*/2);
  EXPECT_THAT(refusal([&] {
                check_sharing(nn::Sequential(first, second), {1, 1},
                              std::vector<c10::Device>(2, c10::kCPU), &two_processes);
              }),
              HasSubstr("of partition 1 in process 1; put both partitions into one process"));
}

TEST(CheckSharing, AParameterMayBeABufferElsewhere) {
  nn::Linear first(2, 2);
  nn::Tanh second;
  second->register_buffer("copy", first->weight);
  const nn::Sequential model(first, second);
  EXPECT_THAT(refusal([&] { check_sharing(model, {1, 1}, kTwoDevices); }), HasSubstr("'1.copy'"));
  EXPECT_NO_THROW(check_sharing(model, {1, 1}, {c10::kCPU, c10::kCPU}));
}

TEST(CheckSharing, WhatIsNotThereIsNotShared) {
  const auto linear = nn::LinearOptions(2, 2).bias(false);
  nn::Tanh first, second;
  first->register_buffer("none", at::Tensor());
  second->register_buffer("none", at::Tensor());
  const nn::Sequential model(nn::Linear(linear), first, nn::Linear(linear), second);
  EXPECT_NO_THROW(check_sharing(model, {2, 2}, kTwoDevices));
}

}  // namespace
}  // namespace gpipe::internal
