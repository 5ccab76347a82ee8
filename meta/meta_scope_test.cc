#include "meta/meta_scope.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Utils.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
namespace init = torch::nn::init;
using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor random_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// Descriptions of a module's tensors, without their values.
std::vector<std::string> descriptions(const nn::Module& module) {
  std::vector<std::string> all;
  const auto add = [&all](const char* kind, const auto& item) {
    const at::Tensor& x = item.value();
    std::ostringstream text;
    text << kind << " " << item.key();
    if (x.defined()) {
      text << " " << x.sizes() << " " << x.strides() << " " << x.dtype() << " "
           << (x.requires_grad() ? "requires grad" : "");
    }
    all.push_back(text.str());
  };
  for (const auto& item : module.named_parameters()) add("parameter", item);
  for (const auto& item : module.named_buffers()) add("buffer", item);
  return all;
}

int64_t defined_tensors(const nn::Module& module, bool on_meta) {
  int64_t count = 0;
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& x : tensors) count += x.defined() && x.is_meta() == on_meta;
  }
  return count;
}

using Build = std::function<std::shared_ptr<nn::Module>()>;

#define GPIPE_BUILD(...)                                 \
  {                                                      \
#__VA_ARGS__, [] { return (nn::__VA_ARGS__).ptr(); } \
  }

// All modules of LibTorch that have parameters or buffers.
const std::pair<const char*, Build> kModules[] = {
    GPIPE_BUILD(Linear(3, 4)),
    GPIPE_BUILD(Bilinear(3, 4, 5)),
    GPIPE_BUILD(Conv1d(3, 4, 3)),
    GPIPE_BUILD(Conv2d(3, 4, 3)),
    GPIPE_BUILD(Conv3d(3, 4, 3)),
    GPIPE_BUILD(ConvTranspose1d(3, 4, 3)),
    GPIPE_BUILD(ConvTranspose2d(3, 4, 3)),
    GPIPE_BUILD(ConvTranspose3d(3, 4, 3)),
    GPIPE_BUILD(BatchNorm1d(3)),
    GPIPE_BUILD(BatchNorm2d(3)),
    GPIPE_BUILD(BatchNorm3d(3)),
    GPIPE_BUILD(InstanceNorm1d(nn::InstanceNorm1dOptions(3).affine(true))),
    GPIPE_BUILD(InstanceNorm2d(nn::InstanceNorm2dOptions(3).track_running_stats(true))),
    GPIPE_BUILD(InstanceNorm3d(nn::InstanceNorm3dOptions(3).affine(true))),
    GPIPE_BUILD(LayerNorm(nn::LayerNormOptions({3}))),
    GPIPE_BUILD(GroupNorm(1, 3)),
    GPIPE_BUILD(Embedding(nn::EmbeddingOptions(3, 4).padding_idx(1))),
    GPIPE_BUILD(EmbeddingBag(3, 4)),
    GPIPE_BUILD(RNN(3, 4)),
    GPIPE_BUILD(LSTM(nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true).proj_size(2))),
    GPIPE_BUILD(GRU(3, 4)),
    GPIPE_BUILD(RNNCell(3, 4)),
    GPIPE_BUILD(LSTMCell(3, 4)),
    GPIPE_BUILD(GRUCell(3, 4)),
    GPIPE_BUILD(PReLU()),
    GPIPE_BUILD(MultiheadAttention(nn::MultiheadAttentionOptions(4, 2).add_bias_kv(true))),
    GPIPE_BUILD(Transformer(nn::TransformerOptions(4, 2))),
    GPIPE_BUILD(AdaptiveLogSoftmaxWithLoss(nn::AdaptiveLogSoftmaxWithLossOptions(8, 10, {4}))),
    GPIPE_BUILD(NLLLoss(nn::NLLLossOptions().weight(torch::rand({3})))),
};

TEST(MetaScope, ModulesDifferInNothingButMemoryAndDrawNothing) {
  for (const auto& [name, build] : kModules) {
    SCOPED_TRACE(name);
    const at::Tensor state = random_state();
    const std::shared_ptr<nn::Module> meta = [&build = build] {
      const MetaScope scope;
      return build();
    }();
    EXPECT_THAT(random_state(), EqualsBitwise(state));
    EXPECT_EQ(defined_tensors(*meta, /*on_meta=*/false), 0);
    EXPECT_GT(defined_tensors(*meta, /*on_meta=*/true), 0);

    const std::shared_ptr<nn::Module> real = build();
    EXPECT_EQ(defined_tensors(*real, /*on_meta=*/true), 0);
    EXPECT_EQ(descriptions(*meta), descriptions(*real));
  }
}

// A layer with 2^40 weights is built at once. A loop over its elements would not end, and no
// machine has memory for them.
TEST(MetaScope, AModelLargerThanAnyMachineIsBuiltAtOnce) {
  const MetaScope scope;
  constexpr int64_t n = int64_t{1} << 20;
  const nn::Sequential model(nn::Linear(n, n), nn::ReLU(), nn::Embedding(n, n), nn::Conv1d(n, n, 3),
                             nn::BatchNorm1d(n));
  int64_t elements = 0;
  for (const at::Tensor& parameter : model->parameters()) elements += parameter.numel();
  EXPECT_EQ(elements, n * n + n + n * n + 3 * n * n + n + 2 * n);
}

TEST(MetaScope, MakesWhatHasNoDeviceOnMeta) {
  const at::Tensor state = random_state();
  const MetaScope scope;
  const at::Generator generator = at::detail::createCPUGenerator();
  const at::Tensor tensors[] = {
      at::empty({2, 3}),
      at::empty_strided({2, 3}, {1, 2}),
      at::empty_permuted({2, 3}, {1, 0}),
      at::zeros({2, 3}),
      at::ones({2, 3}),
      at::full({2, 3}, 1.5),
      at::eye(2, 3),
      at::rand({2, 3}),
      at::rand({2, 3}, generator),
      at::randn({2, 3}),
      at::randint(5, {2, 3}),
      at::normal(0.0, 1.0, {2, 3}),
      at::arange(6).view({2, 3}),
      at::linspace(0, 1, 6).view({2, 3}),
      at::logspace(0, 1, 6).view({2, 3}),
      at::randperm(6).view({2, 3}),
      at::hann_window(6).view({2, 3}),
      torch::empty({2, 3}, torch::requires_grad()),
      torch::randn({2, 3}, torch::kDouble),
  };
  for (const at::Tensor& x : tensors) {
    EXPECT_TRUE(x.is_meta()) << &x - tensors;
    EXPECT_EQ(x.sizes(), (std::vector<int64_t>{2, 3})) << &x - tensors;
  }
  EXPECT_EQ(tensors[1].strides(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(at::randperm(6).scalar_type(), at::kLong);
  EXPECT_EQ(at::randperm(6, at::kInt).scalar_type(), at::kInt);
  EXPECT_TRUE(torch::empty({2}, torch::requires_grad()).requires_grad());
  EXPECT_EQ(torch::randn({2}, torch::kDouble).scalar_type(), at::kDouble);
  for (const at::Tensor& scalar : {torch::tensor(0, torch::kLong), at::scalar_tensor(1.5)}) {
    EXPECT_TRUE(scalar.is_meta());
    EXPECT_EQ(scalar.dim(), 0);
  }
  EXPECT_THAT(random_state(), EqualsBitwise(state));
}

TEST(MetaScope, InitializersDoNothing) {
  const at::Tensor state = random_state();
  const MetaScope scope;
  const at::Tensor weight = torch::empty({1 << 20, 1 << 20, 3});
  init::constant_(weight, 1);
  init::dirac_(torch::empty({4, 4, 3}));
  init::normal_(weight);
  init::ones_(weight);
  init::uniform_(weight);
  init::xavier_normal_(weight);
  init::xavier_uniform_(weight);
  init::kaiming_normal_(weight);
  init::kaiming_uniform_(weight);
  init::zeros_(weight);
  const at::Tensor matrix = torch::empty({4, 4});
  init::eye_(matrix);
  init::orthogonal_(matrix);
  matrix.random_();
  matrix.bernoulli_(0.5);
  matrix.exponential_();
  matrix.copy_(at::ones({4, 4}, at::kCPU));
  EXPECT_TRUE(weight.is_meta());
  EXPECT_TRUE(matrix.is_meta());
  EXPECT_THAT(random_state(), EqualsBitwise(state));
}

TEST(MetaScope, WhatHasADeviceStaysThereAsDoesData) {
  const at::Tensor real = at::ones({3});
  const MetaScope scope;
  for (const at::Tensor& x :
       {at::zeros({3}, at::kCPU), at::rand({3}, at::kCPU), at::zeros_like(real), real.new_ones({3}),
        at::empty({3}, real.options()), at::tensor({1.0f}, at::kCPU), torch::tensor({1.0f, 2.0f}),
        torch::tensor(std::vector<float>{1, 2}), torch::tensor({{1, 2}, {3, 4}}),
        at::tril_indices(3, 3), at::triu_indices(3, 3)}) {
    EXPECT_TRUE(x.is_cpu()) << x.sizes();
  }
  EXPECT_TRUE(at::zeros_like(at::empty({3})).is_meta());
  float memory[] = {1, 2};
  EXPECT_EQ(at::from_blob(memory, {2})[1].item<float>(), 2);
  EXPECT_EQ(torch::tensor({1.0f, 2.0f})[1].item<float>(), 2);
}

// Operators on real tensors give the same results inside a MetaScope as outside. Some of their
// kernels (of an LSTM, of nonzero, of the norm's backward) make tensors of their own, which need
// memory.
TEST(MetaScope, OperatorsOnRealTensorsAreWhatTheyAreOutside) {
  nn::LSTM lstm(3, 4);
  nn::BatchNorm1d norm(4);
  const at::Tensor input = at::randn({5, 2, 3}), weight = at::rand({4});
  const auto run = [&](nn::BatchNorm1d norm) {
    lstm->zero_grad();
    const at::Tensor output = norm->forward(std::get<0>(lstm->forward(input)).flatten(0, 1));
    output.pow(2).mul(weight).sum().backward();
    std::vector<at::Tensor> all = {output.detach(),
                                   at::nonzero(input > 0),
                                   at::median(input),
                                   at::cat({input, input}),
                                   at::one_hot((input > 0).to(at::kLong), 2),
                                   std::get<0>(at::sort(input)),
                                   at::histc(input, 5),
                                   norm->running_mean.clone()};
    for (const at::Tensor& parameter : lstm->parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const std::vector<at::Tensor> outside =
      run(nn::BatchNorm1d(std::dynamic_pointer_cast<nn::BatchNorm1dImpl>(norm->clone())));
  const MetaScope scope;
  const std::vector<at::Tensor> inside = run(norm);
  ASSERT_EQ(inside.size(), outside.size());
  for (size_t k = 0; k < inside.size(); ++k) {
    EXPECT_THAT(inside[k], EqualsBitwise(outside[k])) << k;
  }
}

TEST(MetaScope, AMetaModelRunsForwardAndBackward) {
  const MetaScope scope;
  nn::Sequential model(nn::Linear(8, 16), nn::Tanh(), nn::Dropout(0.5), nn::Linear(16, 10));
  const at::Tensor output = model->forward(at::randn({2, 8}));
  EXPECT_TRUE(output.is_meta());
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{2, 10}));
  output.sum().backward();
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.grad().is_meta());
  }
}

TEST(MetaScope, NestsAndRestores) {
  {
    const MetaScope outer;
    {
      const MetaScope inner;
      EXPECT_TRUE(at::empty({2}).is_meta());
    }
    EXPECT_TRUE(at::empty({2}).is_meta());
  }
  EXPECT_TRUE(at::empty({2}).is_cpu());
  EXPECT_THROW(
      {
        const MetaScope scope;
        at::empty({2}).item();
      },
      c10::Error);
  EXPECT_TRUE(at::empty({2}).is_cpu());
}

TEST(MetaScope, OtherThreadsAreUnaffected) {
  const MetaScope scope;
  bool cpu = false;
  std::thread([&cpu] { cpu = nn::Linear(2, 3)->weight.is_cpu(); }).join();
  EXPECT_TRUE(cpu);
  EXPECT_TRUE(nn::Linear(2, 3)->weight.is_meta());
}

// Many threads use their first scope at the same time, so they race for the registration of the
// kernel.
TEST(MetaScope, ManyThreadsUseItAtOnce) {
  std::vector<int> wrong(8);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&wrong, t] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        if (t % 2 == 0) {
          const MetaScope scope;
          wrong[t] += !nn::BatchNorm1d(3)->running_mean.is_meta();
        }
        wrong[t] += !nn::BatchNorm1d(3)->running_mean.is_cpu();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

TEST(MetaScope, WantedValuesAreErrors) {
  const MetaScope scope;
  const at::Tensor x = at::ones({2});
  EXPECT_THAT([&] { x.to(at::kCPU); }, ThrowsMessage<c10::Error>(HasSubstr("meta tensor")));
  EXPECT_THAT([&] { x.data_ptr<float>(); },
              ThrowsMessage<c10::Error>(HasSubstr("its data is not allocated yet")));
  EXPECT_THAT(
      [&] {
        at::tensor(std::vector<float>{1, 2});
      },
      ThrowsMessage<c10::Error>(HasSubstr("its data is not allocated yet")));
}

}  // namespace
}  // namespace gpipe
