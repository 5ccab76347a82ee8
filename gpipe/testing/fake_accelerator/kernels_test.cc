// Operators on fake devices: values, sizes, errors, and what the race detector learns about them.

#include "gpipe/testing/fake_accelerator/kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <string>
#include <thread>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/backend_fixture.h"
#include "gpipe/testing/fake_accelerator/gate.h"
#include "gpipe/testing/fake_accelerator/verdict.h"

namespace gpipe::testing::fake {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

using KernelsTest = BackendFixture;

TEST_F(KernelsTest, TheHostGoesOnWhileAKernelRuns) {
  const HostWaitScope nobody_waits(runtime(), HostWaits::kForbidden);
  const at::Tensor x = at::ones({4}, device(1));
  Gate gate;
  runtime().launch({1, 0}, gate.task());
  const at::Tensor y = (x + 1).matmul(x) * 2;
  EXPECT_EQ(y.device(), device(1));
  EXPECT_EQ(y.dim(), 0);
  EXPECT_FALSE(runtime().is_idle({1, 0}));
}

TEST_F(KernelsTest, ComputesWhatTheCpuComputes) {
  const at::Tensor x = at::randn({4, 6}), mask = x > 0;
  const auto f = device(2);
  const std::vector<std::pair<std::string, std::function<at::Tensor(at::Tensor, at::Tensor)>>>
      functions = {
          {"view",
           [](auto x, auto) {
             return x.view({3, 8}).t().slice(1, 1) * 3;
           }},
          {"in place", [](auto x, auto) { return x.clone().mul_(2).add_(1).t_(); }},
          {"column", [](auto x, auto) { return x.clone().select(1, 2).zero_(); }},
          {"number", [](auto x, auto) { return x * at::scalar_tensor(2.5, at::kDouble); }},
          {"mask", [](auto x, auto mask) { return x.masked_select(mask); }},
          {"index by mask", [](auto x, auto mask) { return x.index({mask}); }},
          {"put by mask", [](auto x, auto mask) { return x.clone().masked_fill_(mask, 5); }},
          {"nonzero", [](auto, auto mask) { return mask.nonzero(); }},
          {"list",
           [](auto x, auto) {
             return at::cat({x, x.flip(0)}, 1);
           }},
          {"several", [](auto x, auto) { return std::get<0>(x.max(1)) + x.chunk(6, 1)[3].sum(); }},
          {"out",
           [](auto x, auto) {
             at::Tensor out = at::empty({0}, x.options());
             return at::mul_out(out, x, x);
           }},
          {"out of nonzero",
           [](auto, auto mask) {
             at::Tensor out = at::empty({0}, mask.options().dtype(at::kLong));
             return at::nonzero_out(out, mask);
           }},
          {"out in a column",
           [](auto x, auto) {
             at::Tensor all = at::zeros({4, 9}, x.options());
             at::Tensor out = all.slice(1, 1, 7);
             at::mul_out(out, x, x);
             return all;
           }},
          {"mse", [](auto x, auto) { return at::mse_loss(x, x.flip(0)); }},
          {"layer norm",
           [](auto x, auto) {
             const at::Tensor y = at::cat({x, x * x, x.exp()}, 1).repeat({16, 16});
             return at::layer_norm(y, {y.size(1)});
           }},
          {"group norm",
           [](auto x, auto) {
             return at::group_norm(at::cat({x, x * x, x.exp()}, 1).repeat({16, 16}), 4);
           }},
          {"addr", [](auto x, auto) { return at::addr(x, x.select(1, 0), x[0], 0.3, 1.7); }},
          {"types", [](auto x, auto) { return x.to(at::kHalf).to(at::kInt) / 2; }},
          {"unfold", [](auto x, auto) { return x.unfold(1, 3, 2).contiguous(); }},
          {"resize",
           [](auto x, auto) {
             return x.clone().resize_({2, 3});
           }},
      };
  for (const auto& [name, function] : functions) {
    EXPECT_THAT(function(x.to(f), mask.to(f)).cpu(), EqualsBitwise(function(x, mask))) << name;
  }
  EXPECT_TRUE(at::equal(x.to(f), x.to(f)));
  EXPECT_FALSE(at::equal(x.to(f), x.to(f) + 1));
}

TEST_F(KernelsTest, DifferentiatesLayersAsTheCpu) {
  auto run = [](c10::Device where) {
    torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(2, 4, 3).groups(2));
    torch::nn::BatchNorm2d norm(4);
    torch::nn::Linear linear(16, 3);
    std::vector<at::Tensor> all;
    for (torch::nn::Module* module :
         std::initializer_list<torch::nn::Module*>{&*convolution, &*norm, &*linear}) {
      at::Tensor seeds = at::linspace(-1, 1, 1000);
      for (at::Tensor& parameter : module->parameters()) {
        at::NoGradGuard no_grad;
        parameter.copy_(seeds.slice(0, 0, parameter.numel()).view_as(parameter));
      }
      module->to(where);
    }
    const at::Tensor x = at::linspace(-2, 2, 5 * 2 * 4 * 4).view({5, 2, 4, 4}).to(where);
    x.requires_grad_();
    const at::Tensor y = linear(norm(convolution(x)).flatten(1));
    const at::Tensor target = at::arange(5).remainder(3).to(where);
    const at::Tensor loss = torch::nn::functional::cross_entropy(y, target);
    loss.backward();
    all = {loss.detach(), x.grad(), norm->running_mean, norm->running_var};
    for (torch::nn::Module* module :
         std::initializer_list<torch::nn::Module*>{&*convolution, &*norm, &*linear}) {
      for (const at::Tensor& parameter : module->parameters()) all.push_back(parameter.grad());
    }
    for (at::Tensor& tensor : all) tensor = tensor.cpu();
    return all;
  };
  // The CPU computes on one thread, as a stream of a fake device always does, so that sums have the
  // same order.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> want = run(c10::kCPU), have = run(device(1));
  at::set_num_threads(threads);
  EXPECT_THAT(have, EqualsBitwise(want));
}

TEST_F(KernelsTest, AllTensorsAreOnOneDeviceButNumbers) {
  const at::Tensor a = at::ones({3}, device(0)), b = at::ones({3}, device(1));
  EXPECT_THROW(a + b, c10::Error);
  EXPECT_THROW(a + at::ones({3}), c10::Error);
  EXPECT_THROW(a + at::ones({4}, device(0)), c10::Error) << "sizes are known at once";
  EXPECT_EQ((a + at::scalar_tensor(2)).sum().item<double>(), 9);
}

TEST_F(KernelsTest, AnErrorOfValuesIsTheDevices) {
  const at::Tensor table = at::ones({2, 2}, device(1));
  const at::Tensor index = at::full({1}, 7, at::TensorOptions(at::kLong).device(device(1)));
  const at::Tensor row = at::embedding(table, index);
  EXPECT_THROW(row.sum().item(), DeviceError);
  EXPECT_THROW(table + 1, DeviceError);
  EXPECT_THAT(complaints(runtime()), ElementsAre(AllOf(HasSubstr("aten::index_select on fake:1/0"),
                                                       HasSubstr("index out of range"))));
  EXPECT_EQ((table + 1).sum().item<double>(), 8);
}

TEST_F(KernelsTest, ReadsOfOneTensorOnTwoStreamsAreNotARaceAWriteIs) {
  const at::Tensor x = at::ones({8}, device(1));
  runtime().drain();
  at::Tensor a, b;
  a = x + 1;
  on_stream({1, 3}, [&] { b = x + 1; });
  EXPECT_THAT(complaints(runtime()), IsEmpty());
  a = x + 1;
  on_stream({1, 3}, [&] { x.add_(1); });
  EXPECT_THAT(complaints(runtime()),
              ElementsAre(AllOf(HasSubstr("aten::add on fake:1/3"), HasSubstr(", writes"),
                                HasSubstr("aten::add on fake:1/0"), HasSubstr("which reads"))));
}

TEST_F(KernelsTest, AResultIsReadElsewhereOnlyAfterAWait) {
  const at::Tensor x = at::ones({8}, device(1));
  at::Tensor y;
  runtime().wait({1, 4}, runtime().record({1, 0}));
  on_stream({1, 4}, [&] { y = x + 1; });
  runtime().wait({1, 0}, runtime().record({1, 4}));
  at::Tensor z = y * 2;
  EXPECT_THAT(complaints(runtime()), IsEmpty());
  on_stream({1, 5}, [&] { y = x + 1; });
  z = y * 2;
  EXPECT_THAT(complaints(runtime()), Contains(AllOf(HasSubstr("aten::mul on fake:1/0"),
                                                    HasSubstr("aten::add on fake:1/5"))));
}

TEST_F(KernelsTest, ColumnsOnTwoStreamsAreNotARace) {
  const at::Tensor x = at::ones({4, 8}, device(1));
  runtime().drain();
  x.slice(1, 0, 4).zero_();
  on_stream({1, 3}, [&] { x.slice(1, 4, 8).zero_(); });
  EXPECT_THAT(complaints(runtime()), IsEmpty());
  x.slice(1, 0, 5).zero_();
  on_stream({1, 3}, [&] { x.slice(1, 4, 8).zero_(); });
  EXPECT_THAT(complaints(runtime()), Not(IsEmpty()));
}

TEST_F(KernelsTest, BatchNormWritesItsRunningStatisticsInTrainingOnly) {
  torch::nn::BatchNorm1d norm(4);
  norm->to(device(1));
  const at::Tensor x = at::ones({3, 4}, device(1));
  for (bool training : {false, true}) {
    norm->train(training);
    runtime().drain();
    const at::Tensor read = norm->running_mean + 1;
    at::Tensor y;
    on_stream({1, 2}, [&] {
      // The test calls the operator and not the module, because the module also counts the batches.
      y = std::get<0>(at::native_batch_norm(x, norm->weight, norm->bias, norm->running_mean,
                                            norm->running_var, training, 0.1, 1e-5));
    });
    const auto found = complaints(runtime());
    if (training) {
      EXPECT_THAT(found, Contains(AllOf(HasSubstr("native_batch_norm on fake:1/2"),
                                        HasSubstr("aten::add on fake:1/0"))));
    } else {
      EXPECT_THAT(found, IsEmpty());
    }
  }
}

TEST_F(KernelsTest, TheHostWaitsForSizesAndForNothingElse) {
  const at::Tensor x = at::ones({8}, device(1));
  const HostWaitScope nobody_waits(runtime(), HostWaits::kForbidden);
  const at::Tensor y = x.mul(2).sum().expand({3}).clone();
  EXPECT_THAT(complaints(runtime()), IsEmpty());
  x.nonzero();
  EXPECT_THAT(complaints(runtime()),
              ElementsAre(AllOf(HasSubstr("fake:1: "), HasSubstr("aten::nonzero"))));
  x.sum().item();
  EXPECT_THAT(complaints(runtime()), ElementsAre(HasSubstr("item")));
}

TEST_F(KernelsTest, AKernelsMemoryIsKeptByNobody) {
  at::Tensor x = at::ones({1000}, device(1));
  runtime().drain();
  at::Tensor y;
  on_stream({1, 6}, [&] { y = x + 1; });
  x = at::Tensor();  // stream 6 still reads `x`, and no use was recorded
  EXPECT_THAT(complaints(runtime()),
              Contains(AllOf(HasSubstr("free on fake:1/0"), HasSubstr("aten::add on fake:1/6"))));
}

at::Tensor twice(const at::Tensor& x) { return x * 2; }

TEST_F(KernelsTest, WhatAGpuWouldRefuseIsRefused) {
  torch::Library library(torch::Library::FRAGMENT, "fake_kernels_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("twice(Tensor x) -> Tensor");
  library.impl("twice", torch::dispatch(c10::DispatchKey::CPU, twice));
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("fake_kernels_test::twice", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  EXPECT_THAT(op.call(at::ones({2})), EqualsBitwise(at::full({2}, 2.0)));
  EXPECT_THAT(([&] { op.call(at::ones({2}, device(1))); }),
              ThrowsMessage<c10::NotImplementedError>(
                  AllOf(HasSubstr("fake_kernels_test::twice has no kernel for fake devices"),
                        HasSubstr("PrivateUse1"))));
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(2, 2));
  lstm->to(device(1));
  EXPECT_THAT(([&] {
                lstm->forward(at::ones({1, 1, 2}, device(1)));
              }),
              ThrowsMessage<c10::NotImplementedError>(HasSubstr("LibTorch has none of it")));
}

}  // namespace
}  // namespace gpipe::testing::fake
