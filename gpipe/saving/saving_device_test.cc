#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "gpipe/saving/saving.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

using testing::EqualsBitwise;

using CheckpointOnDevices = testing::DeviceTest;

struct Training {
  Training(std::vector<int64_t> balance, std::vector<at::Device> devices)
      : pipe(torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::BatchNorm1d(5),
                                   torch::nn::Linear(5, 6), torch::nn::Linear(6, 3)),
             GPipeOptions(std::move(balance))
                 .devices(std::move(devices))
                 .cpu_threads_per_stage(1)
                 .chunks(2)),
        optimizer(pipe->parameters(), torch::optim::AdamOptions(0.05)) {}

  void train(int64_t first, int64_t last) {
    for (int64_t step = first; step < last; ++step) {
      optimizer.zero_grad();
      const at::Tensor input = torch::linspace(-1, 1 + 0.1 * static_cast<double>(step), 24);
      const at::Tensor target = torch::linspace(0, 1, 18);
      pipe->step({input.view({6, 4}).to(pipe->devices().front())},
                 {target.view({6, 3}).to(pipe->devices().back())},
                 [](const Tensors& outputs, const Tensors& targets) {
                   return torch::nn::functional::mse_loss(outputs[0], targets[0]);
                 });
      optimizer.step();
    }
  }

  GPipe pipe;
  torch::optim::Adam optimizer;
};

void expect_same(Training& reference, Training& other) {
  for (const auto& parameter : reference.pipe->named_parameters()) {
    const at::Tensor same = other.pipe->named_parameters()[parameter.key()];
    EXPECT_THAT(testing::on_host(same), EqualsBitwise(testing::on_host(parameter.value())))
        << parameter.key();
    const auto state_of = [](Training & run, const at::Tensor& tensor) -> auto& {
      return static_cast<torch::optim::AdamParamState&>(
          *run.optimizer.state().at(tensor.unsafeGetTensorImpl()));
    };
    const at::Tensor expected = state_of(reference, parameter.value()).exp_avg();
    const at::Tensor actual = state_of(other, same).exp_avg();
    EXPECT_EQ(actual.device(), same.device()) << parameter.key();
    EXPECT_THAT(testing::on_host(actual), EqualsBitwise(testing::on_host(expected)));
  }
  for (const auto& buffer : reference.pipe->named_buffers()) {
    EXPECT_THAT(testing::on_host(other.pipe->named_buffers()[buffer.key()]),
                EqualsBitwise(testing::on_host(buffer.value())))
        << buffer.key();
  }
}

TEST_F(CheckpointOnDevices, GoesFromAnyToAny) {
  testing::manual_seed(1);
  const std::string path = ::testing::TempDir() + "/device_run" + std::to_string(getpid());
  Training run({2, 2}, {testing::device(0), testing::device(1)});
  run.train(0, 2);
  save_checkpoint(run.pipe, run.optimizer, {2, 12, {}}, path);

  Training others({1, 2, 1}, {testing::device(2), testing::device(0), testing::device(3)});
  others.train(0, 1);
  load_checkpoint(others.pipe, others.optimizer, path);
  expect_same(run, others);
  Training host({3, 1}, {at::kCPU, at::kCPU});
  load_checkpoint(host.pipe, host.optimizer, path);
  expect_same(run, host);

  save_checkpoint(host.pipe, host.optimizer, {2, 12, {}}, path);
  Training back({4}, {testing::device(1)});
  load_checkpoint(back.pipe, back.optimizer, path);
  expect_same(run, back);
  run.train(2, 4);
  others.train(2, 4);
  expect_same(run, others);
  host.train(2, 3);  // throws if the optimizer's states are not on the host
}

}  // namespace
}  // namespace gpipe
