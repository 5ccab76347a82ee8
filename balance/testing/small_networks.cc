#include "balance/testing/small_networks.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <chrono>
#include <thread>

#include "models/amoebanetd.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::testing {
namespace {

struct SleepFunction : torch::autograd::Function<SleepFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, at::Tensor x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return {gradients[0]};
  }
};

struct SleepImpl : torch::nn::Cloneable<SleepImpl> {
  SleepImpl() { SleepImpl::reset(); }
  // Without a parameter there would be nothing to compute a gradient for.
  void reset() override { weight = register_parameter("weight", at::ones({1})); }
  at::Tensor forward(const at::Tensor& x) { return SleepFunction::apply(x * weight); }
  at::Tensor weight;
};
TORCH_MODULE(Sleep);

}  // namespace

at::Tensor random_input(const SmallNetwork& network, int64_t micro_batches) {
  std::vector<int64_t> shape = network.shape;
  shape[0] *= micro_batches;
  return network.words > 0 ? at::randint(network.words, shape, at::kLong) : at::rand(shape);
}

SmallNetwork sleeping_network(int64_t layers) {
  return {std::to_string(layers) + " sleeping layers",
          [layers] {
            torch::nn::Sequential network;
            for (int64_t i = 0; i < layers; ++i) network->push_back(Sleep());
            return network;
          },
          {1, 2}};
}

std::vector<SmallNetwork> small_networks() {
  return {
      {"U-Net, depth 4, 2 convolutions, 16 channels, 2 x 96 x 96",
       [] { return models::unet(models::UNetOptions().depth(4).num_convs(2).base_channels(16)); },
       {2, 3, 96, 96}},
      {"AmoebaNet-D (3, 32), 1 x 224 x 224",
       [] {
         return models::amoebanetd(
             models::AmoebaNetDOptions().num_classes(10).num_layers(3).num_filters(32));
       },
       {1, 3, 224, 224}},
      {"ResNet [1, 1, 1, 1], 4 x 64 x 64",
       [] {
         return models::resnet(models::ResNetOptions({1, 1, 1, 1}).num_classes(10));
       },
       {4, 3, 64, 64}},
  };
}

SmallNetwork small_transformer() {
  static constexpr int64_t kTokens = 128, kWords = 1024;
  return {"GPT-2, 4 blocks, 256 wide, 4 heads, 1024 words, 2 x 128",
          [] {
            return models::transformer(models::TransformerOptions(models::TransformerKind::kGPT2)
                                           .vocab_size(kWords)
                                           .max_positions(kTokens)
                                           .num_layers(4)
                                           .hidden_size(256)
                                           .num_heads(4)
                                           .tied(false));
          },
          {2, kTokens},
          kWords};
}

}  // namespace gpipe::testing
