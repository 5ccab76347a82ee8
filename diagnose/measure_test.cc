#include "diagnose/measure.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <thread>

#include "gpipe/testing/function_layer.h"

namespace gpipe::diagnosis {
namespace {

using at::Tensor;
using testing::layer;

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Sleeps in its forward.
auto sleeper(double seconds) {
  return layer<Tensor, Tensor>([seconds](const Tensor& x) {
    sleep_for(seconds);
    return x;
  });
}

Tensor sum(const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); }

std::vector<c10::Device> cpus(size_t count) { return {count, c10::Device(c10::kCPU)}; }

TEST(MeasureSteps, ActionsOfAllWorkersAddUp) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2), sleeper(0.01), sleeper(0.01));
  const GPipe pipe(model, GPipeOptions({2, 1}).devices(cpus(2)).chunks(4));
  const Tensor input = at::rand({4, 2}).requires_grad_();
  const StepTimes times = measure_steps(pipe, {input}, {}, sum, StepOptions(), /*seconds=*/1e-9);
  // Four and three recomputed in the first stage, four in the second.
  EXPECT_GE(times.busy, 4 * 2 * 0.01);
  EXPECT_GE(times.step, 5 * 0.01);
  EXPECT_LT(times.step, times.busy);
  EXPECT_FALSE(input.grad().defined());
  EXPECT_TRUE(model->parameters()[0].grad().defined());
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
