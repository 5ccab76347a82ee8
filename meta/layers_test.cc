// Tests that modules and optimizers on meta keep tensors of the same shapes as on the CPU.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules.h>
#include <torch/optim.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "meta/testing/same_on_meta.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using testing::Case;
using testing::expect_same_on_meta;
using testing::Trial;
using Tensors = std::vector<at::Tensor>;

TEST(LayersOnMeta, AreAsOnTheCPU) {
  expect_same_on_meta({
      {"linear",
       [](Trial& trial) -> Tensors {
         return {trial.module([] { return nn::Linear(4, 5); })->forward(trial.leaf({2, 3, 4}))};
       }},
      {"bilinear",
       [](Trial& trial) -> Tensors {
         return {trial.module([] { return nn::Bilinear(4, 5, 6); })
                     ->forward(trial.leaf({3, 4}), trial.leaf({3, 5}))};
       }},
      {"embedding",
       [](Trial& trial) -> Tensors {
         return {
             trial.module([] { return nn::Embedding(9, 4); })->forward(trial.integers(9, {3, 2}))};
       }},
      {"embedding bag",
       [](Trial& trial) -> Tensors {
         return {trial.module([] { return nn::EmbeddingBag(9, 4); })
                     ->forward(trial.integers(9, {3, 2}))};
       }},
      {"convolution of same size",
       [](Trial& trial) -> Tensors {
         return {trial
                     .module([] {
                       return nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(torch::kSame));
                     })
                     ->forward(trial.leaf({2, 3, 5, 6}))};
       }},
      {"batch norm",
       [](Trial& trial) -> Tensors {
         return {
             trial.module([] { return nn::BatchNorm2d(4); })->forward(trial.leaf({2, 4, 5, 6}))};
       }},
  });
}

#define GPIPE_MODULE(SIZES, ...)                                                        \
  {                                                                                     \
#__VA_ARGS__, [](Trial &trial) -> Tensors {                                           \
      return {trial.module([] { return nn::__VA_ARGS__; })->forward(trial.leaf SIZES)}; \
    } \
  }

// Modules of LibTorch that take one tensor and return one. The tables above and below have the
// other modules.
TEST(LayersOnMeta, OfTorchNNAreAsOnTheCPU) {
  expect_same_on_meta({
      GPIPE_MODULE(({2, 3, 9}), Conv1d(3, 4, 3)),
      GPIPE_MODULE(({2, 3, 9, 8, 7}), Conv3d(3, 4, 3)),
      GPIPE_MODULE(({2, 3, 9}), ConvTranspose1d(3, 4, 3)),
      GPIPE_MODULE(({2, 3, 9, 8}), ConvTranspose2d(3, 4, 3)),
      GPIPE_MODULE(({2, 3, 9, 8, 7}), ConvTranspose3d(3, 4, 3)),
      GPIPE_MODULE(({2, 3, 9, 8}),
                   Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).padding_mode(torch::kReflect))),
      GPIPE_MODULE(({2, 3, 9, 8}),
                   Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).padding_mode(torch::kCircular))),
      GPIPE_MODULE(({2, 4, 9}), BatchNorm1d(4)),
      GPIPE_MODULE(({2, 4, 9, 8, 7}), BatchNorm3d(4)),
      GPIPE_MODULE(({2, 4, 9}), InstanceNorm1d(nn::InstanceNorm1dOptions(4).affine(true))),
      GPIPE_MODULE(({2, 4, 9, 8}),
                   InstanceNorm2d(nn::InstanceNorm2dOptions(4).track_running_stats(true))),
      GPIPE_MODULE(({2, 4, 9, 8}), GroupNorm(2, 4)),
      GPIPE_MODULE(({2, 4, 9, 8}), LayerNorm(nn::LayerNormOptions({9, 8}))),
      GPIPE_MODULE(({2, 4, 9, 8}), LocalResponseNorm(2)),
      GPIPE_MODULE(({2, 4, 9, 8}), CrossMapLRN2d(3)),
      GPIPE_MODULE(({2, 4, 9, 8}), Unfold(nn::UnfoldOptions({3, 2}))),
      GPIPE_MODULE(({2, 12, 12}), Fold(nn::FoldOptions({4, 5}, {2, 2}))),
      GPIPE_MODULE(({2, 4, 9, 8}), PixelShuffle(2)),
      GPIPE_MODULE(({2, 4, 8, 8}), PixelUnshuffle(2)),
      GPIPE_MODULE(({2, 4, 9, 8}), LPPool2d(nn::LPPool2dOptions(2, 3))),
      GPIPE_MODULE(({2, 4, 9}), ReflectionPad1d(2)),
      GPIPE_MODULE(({2, 4, 9, 8}), ReplicationPad2d(2)),
      GPIPE_MODULE(({2, 4, 9, 8}), ZeroPad2d(2)),
      GPIPE_MODULE(({2, 4, 9, 8}), Upsample(nn::UpsampleOptions()
                                                .scale_factor(std::vector<double>{2, 2})
                                                .mode(torch::kBilinear)
                                                .align_corners(false))),
      GPIPE_MODULE(({2, 4, 9, 8}), Dropout(0.5)),
      GPIPE_MODULE(({2, 4, 9, 8}), Dropout2d(0.5)),
      GPIPE_MODULE(({2, 4, 9, 8, 7}), Dropout3d(0.5)),
      GPIPE_MODULE(({2, 4, 9, 8}), AlphaDropout(0.5)),
      GPIPE_MODULE(({2, 4, 9, 8}), FeatureAlphaDropout(0.5)),
      GPIPE_MODULE(({2, 4, 9, 8}), PReLU(nn::PReLUOptions().num_parameters(4))),
      GPIPE_MODULE(({2, 4, 9, 8}), RReLU()),
      GPIPE_MODULE(({2, 4, 9, 8}), Softmax2d()),
      GPIPE_MODULE(({2, 4}), Softmin(1)),
      GPIPE_MODULE(({2, 4}), GLU()),
      GPIPE_MODULE(({2, 4}), Hardshrink()),
      GPIPE_MODULE(({2, 4}), Softsign()),
      GPIPE_MODULE(({2, 4}), Tanhshrink()),
      GPIPE_MODULE(({2, 4, 9}), Flatten()),
      GPIPE_MODULE(({2, 4, 9}), Unflatten(nn::UnflattenOptions(1, {2, 2}))),
      GPIPE_MODULE(({2, 4, 9}), Identity()),
  });
}

template <typename Module, typename Options>
Case recurrent(const std::string& name, const Options& options) {
  return {name, [=](Trial& trial) -> Tensors {
            auto module = trial.module([&] { return Module(options); });
            const auto [output, state] = module->forward(trial.leaf({5, 2, 3}));
            if constexpr (std::is_same_v<Module, nn::LSTM>) {
              return {output, std::get<0>(state), std::get<1>(state)};
            } else {
              return {output, state};
            }
          }};
}

TEST(LayersOnMeta, RecurrentOnesAreAsOnTheCPU) {
  std::vector<Case> cases;
  for (const bool both : {false, true}) {
    for (const double dropout : {0.0, 0.5}) {
      const std::string with = c10::str(both, " ", dropout);
      cases.push_back(recurrent<nn::RNN>(
          "rnn " + with, nn::RNNOptions(3, 4).num_layers(2).bidirectional(both).dropout(dropout)));
      cases.push_back(recurrent<nn::GRU>(
          "gru " + with, nn::GRUOptions(3, 4).num_layers(2).bidirectional(both).dropout(dropout)));
      cases.push_back(recurrent<nn::LSTM>(
          "lstm " + with,
          nn::LSTMOptions(3, 4).num_layers(2).bidirectional(both).dropout(dropout)));
    }
  }
  cases.push_back(
      {"lstm cell", [](Trial& trial) -> Tensors {
         const auto [h, c] =
             trial.module([] { return nn::LSTMCell(3, 4); })->forward(trial.leaf({2, 3}));
         return {h, c};
       }});
  cases.push_back(
      {"gru cell", [](Trial& trial) -> Tensors {
         return {trial.module([] { return nn::GRUCell(3, 4); })->forward(trial.leaf({2, 3}))};
       }});
  expect_same_on_meta(cases);
}

TEST(LayersOnMeta, AttentionIsAsOnTheCPU) {
  std::vector<Case> cases;
  for (const double dropout : {0.0, 0.1}) {
    for (const bool masked : {false, true}) {
      const std::string with = c10::str(dropout, " ", masked);
      cases.push_back(
          {"multi-head " + with, [=](Trial& trial) -> Tensors {
             auto module = trial.module([=] {
               return nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).dropout(dropout));
             });
             const at::Tensor x = trial.leaf({5, 3, 8});
             const auto [y, weights] =
                 module->forward(x, x, x, {}, true, masked ? trial.data({5, 5}) : at::Tensor());
             return {y, weights};
           }});
      cases.push_back({"encoder layer " + with, [=](Trial& trial) -> Tensors {
                         auto module = trial.module([=] {
                           return nn::TransformerEncoderLayer(
                               nn::TransformerEncoderLayerOptions(8, 2)
                                   .dim_feedforward(16)
                                   .dropout(dropout)
                                   .activation(torch::kGELU));
                         });
                         return {module->forward(trial.leaf({5, 3, 8}),
                                                 masked ? trial.data({5, 5}) : at::Tensor())};
                       }});
      cases.push_back(
          {"math " + with, [=](Trial& trial) -> Tensors {
             const auto [y, weights] = at::_scaled_dot_product_attention_math(
                 trial.leaf({3, 2, 5, 4}), trial.leaf({3, 2, 6, 4}), trial.leaf({3, 2, 6, 4}),
                 masked ? std::make_optional(trial.data({5, 6})) : std::nullopt, dropout);
             return {y, weights};
           }});
      for (const int64_t heads : {4, 2}) {
        cases.push_back(
            {c10::str("scaled dot product ", with, " ", heads), [=](Trial& trial) -> Tensors {
               return {at::scaled_dot_product_attention(
                   trial.leaf({3, 4, 5, 8}), trial.leaf({3, heads, 6, 8}),
                   trial.leaf({3, heads, 6, 8}),
                   masked ? std::make_optional(trial.data({5, 6})) : std::nullopt, dropout,
                   /*is_causal=*/false, std::nullopt, /*enable_gqa=*/true)};
             }});
      }
    }
  }
  cases.push_back({"scaled dot product without a batch", [](Trial& trial) -> Tensors {
                     return {at::scaled_dot_product_attention(
                         trial.leaf({4, 5, 8}), trial.leaf({4, 6, 8}), trial.leaf({4, 6, 8}))};
                   }});
  cases.push_back({"transformer", [](Trial& trial) -> Tensors {
                     auto module = trial.module([] {
                       return nn::Transformer(nn::TransformerOptions(8, 2)
                                                  .num_encoder_layers(1)
                                                  .num_decoder_layers(1)
                                                  .dim_feedforward(16));
                     });
                     return {module->forward(trial.leaf({5, 3, 8}), trial.leaf({4, 3, 8}))};
                   }});
  expect_same_on_meta(cases);
}

template <typename Optimizer, typename Options>
Case stepping(const std::string& name, Options options) {
  return {name, [=](Trial& trial) -> Tensors {
            auto module = trial.module([] { return nn::Linear(4, 5); });
            Optimizer optimizer(module->parameters(), options);
            for (int step = 0; step < 3; ++step) {
              optimizer.zero_grad();
              module->forward(trial.data({2, 4})).sum().backward();
              optimizer.step();
            }
            return {module->weight, module->bias};
          }};
}

TEST(OptimizersOnMeta, StepAsOnTheCPU) {
  expect_same_on_meta({
      stepping<optim::SGD>("sgd", optim::SGDOptions(0.1)),
      stepping<optim::SGD>("momentum", optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1)),
      stepping<optim::SGD>("nesterov", optim::SGDOptions(0.1).momentum(0.9).nesterov(true)),
      stepping<optim::RMSprop>("rmsprop", optim::RMSpropOptions(0.1)),
      stepping<optim::RMSprop>(
          "centered rmsprop",
          optim::RMSpropOptions(0.1).momentum(0.9).centered(true).weight_decay(0.1)),
      stepping<optim::Adam>("adam", optim::AdamOptions(0.1)),
      stepping<optim::Adam>("amsgrad", optim::AdamOptions(0.1).amsgrad(true).weight_decay(0.1)),
      stepping<optim::AdamW>("adamw", optim::AdamWOptions(0.1).amsgrad(true)),
      stepping<optim::Adagrad>("adagrad", optim::AdagradOptions(0.1).weight_decay(0.1)),
  });
}

}  // namespace
}  // namespace gpipe
