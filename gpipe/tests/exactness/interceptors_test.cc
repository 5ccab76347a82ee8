// Tests that all interceptors of operators work together: those of random streams, of running
// statistics, and of MetaScope.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/torch_seed.h"
#include "interception/interception.h"
#include "meta/meta_scope.h"

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;

bool is_on_meta(const nn::Module& module) {
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& x : tensors) {
      if (!x.is_meta()) return false;
    }
  }
  return true;
}

nn::Sequential block() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 2, 3).padding(1)), nn::BatchNorm2d(2),
                        nn::Dropout(0.4));
}

// A layer that draws random numbers. If `builds`, it also builds a block on meta in the middle of
// its forward.
struct BuilderImpl : nn::Module {
  explicit BuilderImpl(bool builds) : builds(builds) {}
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor before = torch::rand_like(x);
    if (builds) {
      const MetaScope meta;
      const nn::Sequential built = block();
      wrong += !is_on_meta(*built) || !torch::normal(0, 1, {2}).is_meta();
      x = x * torch::rand({1}, x.options());  // a real tensor, although a MetaScope lives
    } else {
      x = x * torch::rand({1}, x.options());
    }
    return x + before + torch::rand_like(x);
  }
  bool builds;
  int wrong = 0;
};
TORCH_MODULE(Builder);

TEST(Interceptors, HandOnWhatIsNotForThem) {
  const InterceptionScope scope;
  RandomStreams streams;
  const RandomStreamsScope drawing(&streams);
  streams.enter(1, 2, 3);
  const at::Tensor first = at::rand({4}), second = at::rand({4});
  streams.enter(1, 2, 3);
  EXPECT_THAT(at::rand({4}), EqualsBitwise(first));
  {
    const MetaScope meta;
    EXPECT_TRUE(is_on_meta(*block()));
    EXPECT_TRUE(at::normal(0, 1, {2}).is_meta());
    EXPECT_THAT(at::rand({4}, at::kCPU), EqualsBitwise(second)) << "nothing was drawn for meta";
  }
  EXPECT_TRUE(at::rand({4}).is_cpu());
}

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> values;  // gradients and buffers
  int wrong = 0;
};

// Trains a pipeline with dropout and deferred running statistics on mini-batches of different
// length.
Trained train(bool builds) {
  testing::manual_seed(3);
  nn::Sequential model = block();
  Builder builder(builds);
  model->push_back(builder);
  model->extend(*block());
  GPipe pipe(model, GPipeOptions({3, 1, 3}).chunks(4).deferred_batch_norm(true));
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); };
  Trained result;
  for (const int64_t rows : {8, 7, 8}) {
    result.losses.push_back(pipe->step({torch::randn({rows, 2, 4, 4})}, {}, loss).loss);
  }
  for (const at::Tensor& parameter : model->parameters()) {
    result.values.push_back(parameter.grad());
  }
  for (const at::Tensor& buffer : model->buffers()) result.values.push_back(buffer.clone());
  result.wrong = builder->wrong;
  return result;
}

// A model that is built on meta, on another thread or in the midst of a cell, must change nothing
// of what a pipeline draws, computes and counts.
TEST(Interceptors, APipelineIsTheSameWhileModelsAreBuiltOnMeta) {
  const Trained expected = train(/*builds=*/false);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread other([&] {
    while (!done) {
      {
        const MetaScope meta;
        wrong += !is_on_meta(*block());
      }
      wrong += !at::zeros({1}).is_cpu();
    }
  });
  const Trained actual = train(/*builds=*/true);
  done = true;
  other.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(actual.wrong, 0);
  EXPECT_EQ(actual.losses, expected.losses);
  ASSERT_EQ(actual.values.size(), expected.values.size());
  for (size_t k = 0; k < expected.values.size(); ++k) {
    EXPECT_THAT(actual.values[k], EqualsBitwise(expected.values[k])) << k;
  }
}

}  // namespace
}  // namespace gpipe::internal
