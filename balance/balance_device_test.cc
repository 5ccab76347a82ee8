// Balances on the program's device: balance_device_test runs on the CPU, balance_device_cuda_test
// on a GPU, where times are the GPU's and sizes its allocator's.
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "balance/balance.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/sleeper.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::device;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using testing::layer;
using testing::on_host;

using BalanceOnDevice = testing::DeviceTest;

TimeOptions quick() { return TimeOptions().timeout(1e-9); }

// The sample has 64 KiB, which are whole blocks of CUDA's allocator, so that sizes are exact.
Tensor sample() { return at::rand({128, 128}).to(device()).requires_grad_(); }

auto sleeper(int units) { return testing::sleeper(std::chrono::milliseconds(3 * units)); }

// As in torchgpipe's tests: the cut balances the times of layers that sleep.
TEST_F(BalanceOnDevice, ByTimeFollowsSleepingLayers) {
  nn::Sequential model(sleeper(1), sleeper(2), sleeper(3), sleeper(4), sleeper(5), sleeper(6));
  EXPECT_THAT(balance_by_time(2, model, sample(), quick()), ElementsAre(4, 2));
}

// A layer that keeps `saves` tensors of its input's size. Its parameter has `parameters` units and
// is not used.
struct SizedImpl : nn::Module {
  SizedImpl(int parameters, int saves) : saves(saves) {
    register_parameter("weight", at::rand({parameters, 128, 2}));
  }
  Tensor forward(Tensor x) {
    for (int k = 0; k < saves; ++k) x = x.tanh();
    return x + 1;
  }
  int saves;
};

nn::Sequential sized(const std::vector<int>& parameters, const std::vector<int>& saves) {
  nn::Sequential model;
  for (size_t k = 0; k < parameters.size(); ++k) {
    model->push_back(std::make_shared<SizedImpl>(parameters[k], saves[k]));
  }
  model->to(device());
  return model;
}

const std::vector<int> kOnes = {1, 1, 1, 1, 1, 1};
const std::vector<int> kUp = {1, 2, 3, 4, 5, 6};
const std::vector<int> kDown = {6, 5, 4, 3, 2, 1};

std::vector<int64_t> by_size(const nn::Sequential& model, double param_scale) {
  return balance_by_size(2, model, sample(), SizeOptions().param_scale(param_scale));
}

// As in torchgpipe's tests: without a scale for parameters only kept activations count.
TEST_F(BalanceOnDevice, BySizeFollowsKeptActivations) {
  EXPECT_THAT(by_size(sized(kOnes, kUp), 0), ElementsAre(4, 2));
  EXPECT_THAT(by_size(sized(kOnes, kDown), 0), ElementsAre(2, 4));
}

// As in torchgpipe's tests: with a large scale parameters count most.
TEST_F(BalanceOnDevice, BySizeFollowsParameters) {
  EXPECT_THAT(by_size(sized(kUp, kOnes), 10000), ElementsAre(4, 2));
  EXPECT_THAT(by_size(sized(kDown, kOnes), 10000), ElementsAre(2, 4));
}

// As in torchgpipe's tests: the scale decides between activations and parameters.
TEST_F(BalanceOnDevice, TheParametersScaleDecides) {
  EXPECT_THAT(by_size(sized(kUp, kDown), 0), ElementsAre(2, 4));
  EXPECT_THAT(by_size(sized(kUp, kDown), 10000), ElementsAre(4, 2));
}

// As in two of torchgpipe's tests: the layers run in training mode, and afterwards the model is as
// it was.
TEST_F(BalanceOnDevice, LeavesAnEvaluatingBatchNormAlone) {
  nn::BatchNorm1d norm(128);
  bool trained = true;
  nn::Sequential model(norm, layer<Tensor, Tensor>([&](const Tensor& x) {
                         trained = trained && norm->is_training() && x.device() == device();
                         return x * 1;
                       }));
  model->to(device());
  model->eval();
  std::vector<Tensor> before;
  for (const Tensor& buffer : norm->buffers()) before.push_back(on_host(buffer).clone());
  (void)balance_by_time(2, model, sample(), quick());
  EXPECT_TRUE(trained);
  EXPECT_FALSE(norm->is_training());
  ASSERT_EQ(norm->buffers().size(), before.size());
  for (size_t k = 0; k < before.size(); ++k) {
    EXPECT_THAT(on_host(norm->buffers()[k]), EqualsBitwise(before[k])) << k;
  }
}

// As in torchgpipe's tests: layers may take and give two tensors.
TEST_F(BalanceOnDevice, BySizeOfLayersWithTwoValues) {
  const auto saver = [](int saves) { return std::make_shared<SizedImpl>(1, saves); };
  nn::Sequential model(
      saver(1), layer<Tensor, std::tuple<Tensor, Tensor>>([](const Tensor& x) {
        return std::make_tuple(x * 2, x.detach());
      }),
      layer<std::tuple<Tensor, Tensor>, Tensor>([](const std::tuple<Tensor, Tensor>& pair) {
        return (std::get<0>(pair) + std::get<1>(pair)).tanh();
      }),
      saver(4));
  model->to(device());
  EXPECT_THAT(by_size(model, 0), ElementsAre(3, 1));
}

}  // namespace
}  // namespace gpipe::balance
