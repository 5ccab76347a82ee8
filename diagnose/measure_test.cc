#include "diagnose/measure.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <thread>
#include <vector>

#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/sleeper.h"

namespace gpipe::diagnosis {
namespace {

using at::Tensor;
using testing::cpus;
using testing::layer;
using testing::Seconds;
using testing::sleeper;

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

Tensor sum(const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); }

TEST(StepTimer, ActionsOfAllWorkersAddUp) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2), sleeper(Seconds(0.01)),
                              sleeper(Seconds(0.01)));
  const GPipe pipe(model, GPipeOptions({2, 1}).devices(cpus(2)).chunks(4));
  const Tensor input = at::rand({4, 2}).requires_grad_();
  StepTimer timer(pipe, {input}, {}, sum, StepOptions());
  timer.run(/*counts=*/true);
  const StepTimes times = timer.times();
  // Each of the two stages sleeps in four forwards, and the first also in recomputes. So workers
  // are busy for at least 8 times 0.01 s.
  EXPECT_GE(times.busy, 4 * 2 * 0.01);
  EXPECT_GE(times.step, 5 * 0.01);
  EXPECT_LT(times.step, times.busy);
  EXPECT_FALSE(input.grad().defined());
  EXPECT_TRUE(model->parameters()[0].grad().defined());
}

TEST(StepTimer, InTurnsTheFirstOfThreeDoesNotCount) {
  std::vector<int> calls;
  const auto timer = [&](int which, double seconds) {
    torch::nn::Sequential model(torch::nn::Linear(2, 2),
                                layer<Tensor, Tensor>([&calls, which, seconds](const Tensor& x) {
                                  calls.push_back(which);
                                  if (calls.size() % 3 != 1) sleep_for(seconds);
                                  return x;
                                }));
    return StepTimer(GPipe(model, GPipeOptions({2}).devices(cpus(1))), {at::rand({1, 2})}, {}, sum,
                     StepOptions());
  };
  StepTimer first = timer(1, 0.01), second = timer(2, 0.02);
  run_in_turns({&first, &second}, 1e-9);
  EXPECT_EQ(calls, (std::vector<int>{1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2}));
  EXPECT_GE(first.times().step, 0.01);
  EXPECT_GE(second.times().step, 0.02);
}

TEST(MeasureLoss, ForwardAndBackward) {
  const LossTimes times = measure_loss({at::rand({4, 2}), at::zeros({4}, at::kLong)}, {},
                                       [](const Tensors& outputs, const Tensors&) {
                                         sleep_for(0.01);
                                         Tensor y = outputs.at(0) * 1;
                                         y.register_hook([](const Tensor&) { sleep_for(0.02); });
                                         return y.sum();
                                       });
  EXPECT_GE(times.forward, 0.01);
  EXPECT_LT(times.forward, 0.1);
  EXPECT_GE(times.backward, 0.02);
  EXPECT_LT(times.backward, 0.2);
}

TEST(MeasureLoss, NothingWhereItDoesNotDependOnTheOutputs) {
  const LossTimes times = measure_loss(
      {at::rand({4, 2})}, {}, [](const Tensors&, const Tensors&) { return at::zeros({}); });
  EXPECT_EQ(times.forward, 0);
  EXPECT_EQ(times.backward, 0);
}

TEST(MeasureLink, ThereIsNoneOnOneDevice) {
  const Link link = measure_link(cpus(3));
  EXPECT_EQ(link.bandwidth, 0);
  EXPECT_EQ(link.latency, 0);
}

TEST(PartitionsAtOnce, AsManyAsThereIsRoomFor) {
  EXPECT_EQ(partitions_at_once(cpus(4), 1, 2), 2);
  EXPECT_EQ(partitions_at_once(cpus(4), 1, 64), 4);
  EXPECT_EQ(partitions_at_once(cpus(4), 4, 8), 2);
  EXPECT_EQ(partitions_at_once(cpus(4), 16, 8), 1);
  EXPECT_GE(partitions_at_once(cpus(4), 1, 0), 1);
  const std::vector<c10::Device> mixed = {c10::Device("cuda:0"), c10::Device("cuda:1"),
                                          c10::Device("cuda:0"), c10::Device("cpu")};
  EXPECT_EQ(partitions_at_once(mixed, 1, 8), 3);
}

}  // namespace
}  // namespace gpipe::diagnosis
