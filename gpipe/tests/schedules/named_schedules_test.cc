// Tests that all named schedules, and those that a search finds, give the parameters of 1F1B, bit
// for bit, after a training of several steps. They do so because they add up gradients in the same
// order.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/search.h"
#include "gpipe/schedule/verify.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::cpu_options;
using testing::EqualsBitwise;

constexpr int64_t kStages = 4;
constexpr int64_t kChunks = 6;
constexpr int kSteps = 20;

// Every stage has a batch norm, whose buffers must be the same, too, and a dropout, which draws
// random numbers.
nn::Sequential model() {
  testing::manual_seed(5);
  nn::Sequential layers;
  for (int64_t stage = 0; stage < kStages; ++stage) {
    layers->push_back(nn::Linear(6, 6));
    layers->push_back(nn::BatchNorm1d(6));
    layers->push_back(nn::Dropout(0.2));
    layers->push_back(nn::Tanh());
  }
  return layers;
}

// Returns the parameters and buffers after the steps. Each fifth batch is short, and cut unevenly.
std::vector<torch::Tensor> trained(const ScheduleGenerator& schedule, Checkpoint mode) {
  GPipe pipe(model(), cpu_options(std::vector<int64_t>(kStages, 4))
                          .chunks(kChunks)
                          .checkpoint(mode)
                          .deferred_batch_norm(true)
                          .cpu_threads_per_stage(1));
  torch::optim::Adam optimizer(pipe->parameters(), 0.01);
  testing::manual_seed(6);
  for (int step = 0; step < kSteps; ++step) {
    const int64_t rows = step % 5 == 4 ? 17 : 24;
    const torch::Tensor input = torch::randn({rows, 6});
    optimizer.zero_grad();
    pipe->step(
        {input}, {input.roll(1, 1)},
        [](const torch::Tensor& output, const torch::Tensor& target) {
          return nn::functional::mse_loss(output, target);
        },
        StepOptions().schedule(schedule));
    optimizer.step();
  }
  std::vector<torch::Tensor> state = pipe->parameters();
  for (const torch::Tensor& buffer : pipe->buffers()) state.push_back(buffer);
  return state;
}

// Returns the results of 1F1B, which is trained once for all tests.
const std::vector<torch::Tensor>& trained_by_1f1b(Checkpoint mode) {
  static std::map<Checkpoint, std::vector<torch::Tensor>> trainings;
  const auto [known, made] = trainings.try_emplace(mode);
  if (made) known->second = trained(schedule_by_name("1f1b"), mode);
  return known->second;
}

void expect_the_bits_of_1f1b(const ScheduleGenerator& schedule) {
  at::set_num_threads(1);
  for (Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    const std::vector<torch::Tensor>& want = trained_by_1f1b(mode);
    const std::vector<torch::Tensor> have = trained(schedule, mode);
    ASSERT_EQ(have.size(), want.size());
    for (size_t k = 0; k < want.size(); ++k) EXPECT_THAT(have[k], EqualsBitwise(want[k])) << k;
  }
}

class NamedSchedules : public ::testing::TestWithParam<NamedSchedule> {};

TEST_P(NamedSchedules, TrainToTheBitsOf1F1B) {
  expect_the_bits_of_1f1b(schedule_by_name(GetParam().name));
}

// Search options for stages of different costs, with whole and split backwards.
SearchOptions uneven(const Placement& placement) {
  SearchOptions options;
  options.placement = placement;
  options.micro_batches = kChunks;
  options.costs = {{1.0, 1.6, 1.1, 0.7}, {1.3, 2.5, 1.0, 1.6}, {0.7, 1.6, 1.0, 0.5}, {1, 2, 1, 1}};
  options.activation_transfer = options.gradient_transfer = {0.2};
  options.memory_limit = {6.0};
  options.budget = 3'000'000;
  return options;
}

class SearchedSchedules : public ::testing::TestWithParam<Placement> {};

TEST_P(SearchedSchedules, TrainToTheBitsOf1F1B) {
  const SearchResult found = search(uneven(GetParam()));
  ASSERT_EQ(found.origin, "search");
  ASSERT_TRUE(found.schedule.verify(Sends::kBuffered).ascending);
  int64_t wholes = 0, splits = 0;
  for (const std::vector<Action>& actions : found.schedule.table()) {
    for (const Action& action : actions) {
      wholes += action.kind == ActionKind::kBackward;
      splits += action.kind == ActionKind::kInputGradient;
    }
  }
  EXPECT_GT(wholes, 0);
  EXPECT_GT(splits, 0);
  // The search must have found another table than those of the named schedules.
  for (const NamedSchedule& named : named_schedules()) {
    EXPECT_NE(found.schedule, schedule_by_name(named.name, kStages, kChunks)) << named.name;
  }
  expect_the_bits_of_1f1b([&](int64_t stages, int64_t micro_batches) {
    EXPECT_EQ(stages, kStages);
    EXPECT_EQ(micro_batches, kChunks);
    return found.schedule;
  });
}

INSTANTIATE_TEST_SUITE_P(InAVAndInALoop, SearchedSchedules,
                         ::testing::Values(Placement::v_shape(2), Placement::loop(2, 2)),
                         [](const auto& info) {
                           return info.param == Placement::v_shape(2) ? "v" : "loop";
                         });

// Returns the named schedules except Schedule::gpipe, whose sums differ because its backwards come
// in reverse order. Fill-drain is the same schedule with backwards in the order of the others.
std::vector<NamedSchedule> in_one_order() {
  std::vector<NamedSchedule> names;
  for (const NamedSchedule& schedule : named_schedules()) {
    if (schedule.name != "gpipe") names.push_back(schedule);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, NamedSchedules, ::testing::ValuesIn(in_one_order()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& letter : name) letter = letter == '-' ? '_' : letter;
                           return name;
                         });

}  // namespace
}  // namespace gpipe
