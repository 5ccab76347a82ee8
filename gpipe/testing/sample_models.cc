#include "gpipe/testing/sample_models.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <utility>

#include "gpipe/testing/torch_seed.h"
#include "skip/skippable.h"

namespace gpipe::testing {
namespace {

namespace nn = torch::nn;

struct StashImpl : nn::Module, skip::Skippable {
  explicit StashImpl(const skip::Namespace& ns, std::vector<std::string> names = {"skip"})
      : Skippable(std::move(names), {}) {
    isolate(ns);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const std::string& name : stashes()) stash(name, x);
    return x;
  }
};
TORCH_MODULE(Stash);

struct PopAddImpl : nn::Module, skip::Skippable {
  explicit PopAddImpl(const skip::Namespace& ns, std::vector<std::string> names = {"skip"})
      : Skippable({}, std::move(names)) {
    isolate(ns);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const std::string& name : pops()) x = x + pop(name).tanh();
    return x;
  }
};
TORCH_MODULE(PopAdd);

// Returns (row numbers, x W, x), so that the next layer's list begins with an integer value.
struct SplitImpl : nn::Module {
  explicit SplitImpl(int64_t width) {
    linear = register_module("linear", nn::Linear(width, width));
  }
  Tensors forward(torch::Tensor x) {
    torch::Tensor number = torch::arange(x.size(0), x.options().dtype(torch::kLong)).remainder(3);
    return {number, linear(x), x};
  }
  nn::Linear linear{nullptr};
};
TORCH_MODULE(Split);

struct MixImpl : nn::Module {
  explicit MixImpl(int64_t width) { linear = register_module("linear", nn::Linear(width, width)); }
  Tensors forward(Tensors values) {
    torch::Tensor scale = values[0].to(values[1].dtype()).unsqueeze(1) + 1;
    return {values[0], linear(values[1]).relu() * scale, values[2].sin()};
  }
  nn::Linear linear{nullptr};
};
TORCH_MODULE(Mix);

struct MergeImpl : nn::Module {
  torch::Tensor forward(Tensors values) { return values[1] + values[2]; }
};
TORCH_MODULE(Merge);

struct ConvStashImpl : nn::Module, skip::Skippable {
  ConvStashImpl() : Skippable({"skip"}, {}) { conv = register_module("conv", nn::Conv2d(2, 2, 3)); }
  at::Tensor forward(at::Tensor x) {
    x = conv(x);
    stash("skip", x);
    return x;
  }
  nn::Conv2d conv{nullptr};
};
TORCH_MODULE(ConvStash);

struct ConvPopImpl : nn::Module, skip::Skippable {
  ConvPopImpl() : Skippable({}, {"skip"}) { conv = register_module("conv", nn::Conv2d(4, 2, 3)); }
  at::Tensor forward(at::Tensor x) { return conv(torch::cat({x, pop("skip")}, 1)); }
  nn::Conv2d conv{nullptr};
};
TORCH_MODULE(ConvPop);

LossFn mse() {
  return [](const Tensors& outputs, const Tensors& targets) {
    return nn::functional::mse_loss(outputs[0], targets[0]);
  };
}

std::function<Tensors(int64_t)> random(std::vector<int64_t> shape, uint64_t seed) {
  return [shape, seed](int64_t rows) {
    testing::manual_seed(seed);
    std::vector<int64_t> full = shape;
    full.insert(full.begin(), rows);
    return Tensors{torch::randn(full)};
  };
}

SampleModel chain() {
  auto make = [] {
    testing::manual_seed(1);
    return nn::Sequential(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 8), nn::ReLU(),
                          nn::Linear(8, 3));
  };
  return {"chain", make, random({6}, 2), random({3}, 3), mse(), 5};
}

SampleModel dropout() {
  auto make = [] {
    testing::manual_seed(1);
    return nn::Sequential(nn::Dropout(0.3), nn::Linear(6, 8), nn::Dropout(0.5), nn::Linear(8, 8),
                          nn::Dropout(0.2), nn::Linear(8, 3));
  };
  return {"dropout", make, random({6}, 2), random({3}, 3), mse(), 6};
}

SampleModel batch_norm() {
  auto make = [] {
    testing::manual_seed(1);
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)),
                          nn::BatchNorm2d(4), nn::ReLU(),
                          nn::Conv2d(nn::Conv2dOptions(4, 2, 3).padding(1)), nn::BatchNorm2d(2));
  };
  return {"batch_norm", make, random({2, 5, 5}, 2), random({2, 5, 5}, 3), mse(), 5};
}

SampleModel skips() {
  auto make = [] {
    testing::manual_seed(1);
    const skip::Namespace outer;
    const skip::Namespace inner;
    return nn::Sequential(nn::Linear(6, 6), Stash(outer), nn::Linear(6, 6), Stash(inner),
                          nn::Tanh(), nn::Linear(6, 6), PopAdd(inner), PopAdd(outer),
                          nn::Linear(6, 3));
  };
  return {"skips", make, random({6}, 2), random({3}, 3), mse(), 9};
}

SampleModel several_values() {
  auto make = [] {
    testing::manual_seed(1);
    return nn::Sequential(Split(4), Mix(4), Mix(4), Merge(), nn::Linear(4, 3));
  };
  return {"several_values", make, random({4}, 2), random({3}, 3), mse(), 5};
}

void cut(int64_t layers, int64_t partitions, std::vector<int64_t>& head,
         std::vector<std::vector<int64_t>>& result) {
  if (partitions == 1) {
    head.push_back(layers);
    result.push_back(head);
    head.pop_back();
    return;
  }
  for (int64_t first = 1; first <= layers - (partitions - 1); ++first) {
    head.push_back(first);
    cut(layers - first, partitions - 1, head, result);
    head.pop_back();
  }
}

}  // namespace

const std::vector<SampleModel>& sample_models() {
  static const auto* models =
      new std::vector<SampleModel>{chain(), dropout(), batch_norm(), skips(), several_values()};
  return *models;
}

nn::Sequential convolutions_with_a_skip() {
  testing::manual_seed(2);
  return nn::Sequential(ConvStash(), nn::Conv2d(nn::Conv2dOptions(2, 2, 3).padding(1)), ConvPop());
}

std::vector<std::vector<int64_t>> all_balances(int64_t layers, int64_t partitions) {
  std::vector<std::vector<int64_t>> result;
  std::vector<int64_t> head;
  if (partitions <= layers) cut(layers, partitions, head, result);
  return result;
}

}  // namespace gpipe::testing
