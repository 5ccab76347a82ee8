#include "experiments/frame/data_parallel.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/testing/cpu_options.h"

namespace gpipe::experiments {
namespace {

using gpipe::testing::cpus;

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
}

at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
  return output.sub(target).square().mean();
}

at::Tensor waves(int64_t rows, int64_t columns) {
  return at::arange(rows * columns, at::kFloat).sin().reshape({rows, columns});
}

class DataParallelTest : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(DataParallelTest, IsOneBigBatch) {
  const auto [replicas, rows] = GetParam();
  torch::nn::Sequential model = make_model();
  torch::nn::Sequential plain = make_model();
  DataParallel parallel(model, make_model, cpus(static_cast<std::size_t>(replicas)), loss);
  const at::Tensor input = waves(rows, 4);
  const at::Tensor target = waves(rows, 3);
  for (int step = 0; step < 2; ++step) {
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < plain->parameters().size(); ++p) {
      plain->parameters()[p].copy_(model->parameters()[p]);
      plain->parameters()[p].mutable_grad().reset();
    }
    double ours = 0;
    at::Tensor theirs;
    {
      const torch::AutoGradMode with_grad(true);
      ours = parallel.step(input, target);
      theirs = loss(plain->forward(input), target);
      theirs.backward();
    }
    // Replicas add up the same numbers in another order, so the last bits may differ.
    EXPECT_NEAR(ours, theirs.item().toDouble(), 1e-6);
    for (std::size_t p = 0; p < plain->parameters().size(); ++p) {
      EXPECT_TRUE(
          at::allclose(model->parameters()[p].grad(), plain->parameters()[p].grad(), 1e-5, 1e-7));
      model->parameters()[p].sub_(model->parameters()[p].grad(), 0.1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ReplicasAndRows, DataParallelTest,
                         ::testing::Values(std::pair{1, 6}, std::pair{2, 6}, std::pair{3, 7},
                                           std::pair{4, 2}));

TEST(DataParallel, RunningStatisticsAreTheFirstReplicas) {
  const auto make = [] { return torch::nn::Sequential(torch::nn::BatchNorm1d(2)); };
  torch::nn::Sequential model = make();
  DataParallel parallel(model, make, cpus(2), loss);
  const at::Tensor input = waves(8, 2);
  parallel.step(input, input);
  const at::Tensor expected = input.narrow(0, 0, 4).mean(0).mul(0.1);
  EXPECT_TRUE(at::allclose(model->named_buffers()["0.running_mean"], expected));
}

struct Failing : torch::nn::Module {
  at::Tensor forward(at::Tensor input) {
    if (input.min().item().toFloat() < 0) throw std::runtime_error("negative");
    return input;
  }
};

TEST(DataParallel, AnExceptionReachesTheCallerAndTheNextStepWorks) {
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(2, 2), std::make_shared<Failing>());
  };
  torch::nn::Sequential model = make();
  {
    const torch::NoGradGuard no_grad;
    model->parameters()[0].copy_(at::eye(2));
    model->parameters()[1].zero_();
  }
  DataParallel parallel(model, make, cpus(2), loss);
  at::Tensor input = at::ones({4, 2});
  input[3].fill_(-1);
  EXPECT_THAT([&] { parallel.step(input, input); },
              ::testing::ThrowsMessage<std::runtime_error>(::testing::HasSubstr("negative")));
  input.abs_();
  EXPECT_NEAR(parallel.step(input, input), 0, 1e-12);
}

TEST(DataParallel, SharesTheCoresAndLeavesTheCallersAlone) {
  const int before = at::get_num_threads();
  DataParallel parallel(make_model(), make_model, cpus(2), loss);
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(DataParallel, WrongArguments) {
  EXPECT_THROW(DataParallel(make_model(), make_model, {}, loss), c10::ValueError);
  const auto other = [] { return torch::nn::Sequential(torch::nn::Linear(4, 9)); };
  EXPECT_THROW(DataParallel(make_model(), other, cpus(2), loss), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::experiments
