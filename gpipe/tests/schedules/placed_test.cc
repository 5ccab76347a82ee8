// Tests GPipeOptions::placement: where stages run, with how many threads, and under which schedule.
// The results must be the same as with a worker for each stage.

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::cpu_options;
using ::testing::Each;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

nn::Sequential model(int64_t stages) {
  testing::manual_seed(5);
  nn::Sequential layers;
  for (int64_t stage = 0; stage < stages; ++stage) {
    layers->push_back(nn::Linear(6, 6));
    layers->push_back(nn::BatchNorm1d(6));
    layers->push_back(nn::Dropout(0.2));
    layers->push_back(nn::Tanh());
  }
  return layers;
}

at::Tensor squares(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).pow(2).mean();
}

GPipeOptions options_of(int64_t stages) {
  return cpu_options(std::vector<int64_t>(static_cast<size_t>(stages), 4))
      .chunks(5)
      .cpu_threads_per_stage(1);
}

// Returns loss, outputs, gradients and buffers of a step, a forward with its backward, and an
// evaluation.
Tensors results(const GPipeOptions& options) {
  const auto stages = static_cast<int64_t>(options.balance().size());
  GPipe pipe(model(stages), options);
  testing::manual_seed(6);
  const at::Tensor x = torch::randn({14, 6}), y = torch::randn({14, 6});
  StepResult step = pipe->step({x}, {y}, squares, StepOptions().keep_outputs(true));
  Tensors all = {torch::tensor(step.loss, at::kDouble), step.outputs.at(0)};
  const at::Tensor output = pipe->forward(x);
  output.sum().backward();
  all.push_back(output.detach());
  all.push_back(torch::tensor(pipe->evaluate({x}, {y}, squares).loss, at::kDouble));
  for (const at::Tensor& parameter : pipe->parameters()) all.push_back(parameter.grad());
  for (const at::Tensor& buffer : pipe->buffers()) all.push_back(buffer);
  return all;
}

std::vector<Placement> placements() {
  return {Placement::one_each(4),      Placement::loop(2, 2),       Placement::v_shape(2),
          Placement::of({0, 0, 0, 0}), Placement::of({0, 0, 1, 1}), Placement::of({1, 0, 0, 2}),
          Placement::of({2, 1, 0, 1})};
}

TEST(Placed, ResultsAreThoseOfAWorkerForEachStage) {
  at::set_num_threads(1);
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    const Tensors want = results(options_of(4).checkpoint(mode));
    for (const Placement& placement : placements()) {
      const Tensors have = results(options_of(4).checkpoint(mode).placement(placement));
      ASSERT_EQ(have.size(), want.size());
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_THAT(have[k], EqualsBitwise(want[k])) << placement.to_text() << k;
      }
    }
  }
}

class PlacedOnDevices : public testing::DeviceTest {};

TEST_F(PlacedOnDevices, WorkersMayHaveStagesOnSeveralDevices) {
  const auto trained = [](const std::optional<Placement>& placement) {
    testing::manual_seed(5);
    nn::Sequential layers;
    for (int k = 0; k < 4; ++k) layers->push_back(nn::Linear(6, 6));
    GPipeOptions options = GPipeOptions({1, 1, 1, 1}).devices(testing::devices(4)).chunks(4);
    options.placement(placement);
    GPipe pipe(layers, options);
    testing::manual_seed(6);
    const at::Tensor x = testing::copy_on(pipe->devices().front(), torch::randn({8, 6}));
    const at::Tensor y = testing::copy_on(pipe->devices().back(), torch::randn({8, 6}));
    for (int step = 0; step < 2; ++step) pipe->step({x}, {y}, squares);
    pipe->forward(x).sum().backward();
    Tensors gradients;
    for (const at::Tensor& parameter : pipe->parameters()) {
      gradients.push_back(testing::on_host(parameter.grad()));
    }
    return gradients;
  };
  const Tensors want = trained(std::nullopt);
  for (const Placement& placement : placements()) {
    const Tensors have = trained(placement);
    for (size_t k = 0; k < want.size(); ++k) {
      EXPECT_THAT(have[k], EqualsBitwise(want[k])) << placement.to_text() << k;
    }
  }
}

TEST(Placed, StagesRunOnTheirWorkers) {
  for (const Placement& placement : placements()) {
    GPipe pipe(model(4), options_of(4).placement(placement));
    EXPECT_EQ(pipe->placement(), placement);
    std::mutex mutex;
    std::map<int64_t, std::set<int64_t>> workers;          // [stage] the workers that ran it
    std::map<int64_t, std::set<std::thread::id>> threads;  // [worker] the threads that it ran on
    pipe->step({torch::randn({8, 6})}, {torch::randn({8, 6})}, squares,
               StepOptions().on_event([&](const Event& event) {
                 const std::lock_guard<std::mutex> lock(mutex);
                 workers[event.action.stage].insert(event.worker);
                 threads[event.worker].insert(std::this_thread::get_id());
               }));
    ASSERT_EQ(workers.size(), 4u);
    for (const auto& [stage, of_stage] : workers) {
      EXPECT_EQ(of_stage, std::set<int64_t>{placement.worker_of(stage)}) << placement.to_text();
    }
    EXPECT_EQ(static_cast<int64_t>(threads.size()), placement.workers());
    for (const auto& entry : threads) EXPECT_EQ(entry.second.size(), 1u);
  }
}

// A layer that records with how many threads its operators may run.
struct CountingImpl : nn::Module {
  explicit CountingImpl(std::shared_ptr<std::vector<int>> counts) : counts(std::move(counts)) {}
  at::Tensor forward(const at::Tensor& x) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    counts->push_back(at::get_num_threads());
    return x * 1;
  }
  std::shared_ptr<std::vector<int>> counts;
};
TORCH_MODULE(Counting);

TEST(Placed, WorkersShareTheThreadsOfTheCaller) {
  at::set_num_threads(4);
  const auto counts_of = [](GPipeOptions options, int64_t per_stage) {
    auto counts = std::make_shared<std::vector<int>>();
    nn::Sequential layers;
    for (int k = 0; k < 4; ++k) layers->push_back(Counting(counts));
    GPipe pipe(layers, options.chunks(2).cpu_threads_per_stage(per_stage));
    (void)pipe->forward(torch::ones({4, 2}));
    EXPECT_EQ(counts->size(), 8u);
    EXPECT_THAT(*counts, Each(static_cast<int>(pipe->cpu_threads_per_stage())));
    return counts->front();
  };
  const GPipeOptions options = cpu_options({1, 1, 1, 1});
  EXPECT_EQ(counts_of(options, 0), 1);
  EXPECT_EQ(counts_of(GPipeOptions(options).placement(Placement::one_each(4)), 0), 1);
  EXPECT_EQ(counts_of(GPipeOptions(options).placement(Placement::loop(2, 2)), 0), 2);
  EXPECT_EQ(counts_of(GPipeOptions(options).placement(Placement::loop(1, 4)), 0), 4);
  EXPECT_EQ(counts_of(GPipeOptions(options).placement(Placement::v_shape(2)), 3), 3);
  at::set_num_threads(1);
}

TEST(Placed, AnyScheduleOfThePlacementRuns) {
  GPipe pipe(model(4), options_of(4).placement(placement_by_name("zb-v", 4)));
  const at::Tensor x = torch::randn({10, 6}), y = torch::randn({10, 6});
  EXPECT_NO_THROW(pipe->step({x}, {y}, squares, StepOptions().schedule(schedule_by_name("zb-v"))));
  EXPECT_THAT(
      [&] { pipe->step({x}, {y}, squares, StepOptions().schedule(schedule_by_name("1f1b"))); },
      ThrowsMessage<c10::ValueError>(HasSubstr("does not fit GPipeOptions::placement")));
  EXPECT_THAT(
      [&] { pipe->evaluate({x}, {y}, squares, StepOptions().schedule(schedule_by_name("1f1b"))); },
      ThrowsMessage<c10::ValueError>(HasSubstr("does not fit GPipeOptions::placement")));
  EXPECT_NO_THROW(pipe->step({x}, {y}, squares));  // the error has changed nothing
  EXPECT_THAT(
      [&] {
        pipe->step({x}, {y}, squares, StepOptions().schedule([](int64_t, int64_t) -> Schedule {
          throw std::invalid_argument("of the caller's own");
        }));
      },
      ThrowsMessage<std::invalid_argument>(::testing::StrEq("of the caller's own")));
}

TEST(Placed, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(
      [] { GPipe(model(4), options_of(4).placement(Placement::one_each(3))); },
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("of 3 stages"), HasSubstr("4 partitions"))));
  EXPECT_THAT(
      [] {
        GPipe(model(4), options_of(4).placement(Placement::loop(2, 2).processes({0, 1})));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("leave out Placement::processes")));
  EXPECT_EQ(GPipe(model(2), options_of(2))->placement(), Placement::one_each(2));
}

}  // namespace
}  // namespace gpipe
