// Tests the networks of //models on meta: whole training steps.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "meta/testing/same_on_meta.h"
#include "models/amoebanetd.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe {
namespace {

using testing::same_on_meta;
using testing::Trial;
using torch::nn::Sequential;
using Make = std::function<Sequential()>;

// A computation of two training steps and an evaluation.
testing::Computation training(const Make& make, std::vector<int64_t> sizes, bool classifies) {
  return [=](Trial& trial) {
    Sequential model = trial.module(make);
    torch::optim::SGD optimizer(model->parameters(),
                                torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-4));
    std::vector<at::Tensor> results;
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const at::Tensor output = model->forward(trial.data(sizes));
      const at::Tensor loss =
          classifies
              ? torch::nn::functional::cross_entropy(output, trial.integers(5, {output.size(0)}))
              : torch::nn::functional::mse_loss(output, trial.data(output.sizes()));
      results.insert(results.end(), {output.detach(), loss.detach()});
      loss.backward();
      optimizer.step();
    }
    model->eval();
    const at::NoGradGuard no_grad;
    results.push_back(model->forward(trial.data(sizes)));
    return results;
  };
}

Sequential small_resnet(bool inplace) {
  return models::resnet(
      models::ResNetOptions({1, 2}).num_classes(5).base_planes(4).inplace(inplace));
}

TEST(ModelsOnMeta, ResNetTrains) {
  for (const bool inplace : {false, true}) {
    EXPECT_TRUE(
        same_on_meta(training([=] { return small_resnet(inplace); }, {2, 3, 32, 32}, true)));
  }
}

TEST(ModelsOnMeta, UNetTrains) {
  const Make make = [] {
    return models::unet(models::UNetOptions().depth(2).num_convs(2).base_channels(4));
  };
  EXPECT_TRUE(same_on_meta(training(make, {2, 3, 32, 32}, false)));
  // With an odd size the popped tensor is larger than the one that it is joined to.
  EXPECT_TRUE(same_on_meta(training(make, {2, 3, 33, 35}, false)));
}

TEST(ModelsOnMeta, AmoebaNetTrains) {
  const Make make = [] {
    return models::amoebanetd(
        models::AmoebaNetDOptions().num_layers(3).num_filters(16).num_classes(5));
  };
  EXPECT_TRUE(same_on_meta(training(make, {2, 3, 224, 224}, true)));
}

// A computation of two training steps of a language model and an evaluation.
testing::Computation token_training(const models::TransformerOptions& options, int64_t rows) {
  return [=](Trial& trial) {
    Sequential model = trial.module([&] { return models::transformer(options); });
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const std::vector<int64_t> sizes = {rows, options.max_positions()};
    std::vector<at::Tensor> results;
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const at::Tensor output = model->forward(trial.integers(options.vocab_size(), sizes));
      const at::Tensor loss = torch::nn::functional::cross_entropy(
          output.flatten(0, 1), trial.integers(options.vocab_size(), sizes).flatten());
      results.insert(results.end(), {output.detach(), loss.detach()});
      loss.backward();
      optimizer.step();
    }
    model->eval();
    const at::NoGradGuard no_grad;
    results.push_back(model->forward(trial.integers(options.vocab_size(), sizes)));
    return results;
  };
}

TEST(ModelsOnMeta, TransformersTrain) {
  for (const auto kind : {models::TransformerKind::kGPT2, models::TransformerKind::kLlama}) {
    models::TransformerOptions options(kind);
    options.vocab_size(11).max_positions(6).num_layers(2).hidden_size(8).num_heads(4);
    options.intermediate_size(12).attention_dropout(0.1);
    if (kind == models::TransformerKind::kLlama) options.num_kv_heads(2);
    for (const bool tied : {false, true}) {
      EXPECT_TRUE(same_on_meta(token_training(options.tied(tied), 3)));
    }
  }
}

// Networks of the published sizes train on meta in seconds. On the CPU these batches would take
// minutes and tens of gigabytes.
TEST(ModelsOnMeta, PublishedSizesTrainInSeconds) {
  const auto step = [](const Make& make, std::vector<int64_t> sizes, bool classifies) {
    Trial trial(/*on_meta=*/true);
    return training(make, std::move(sizes), classifies)(trial);
  };
  EXPECT_EQ(step([] { return models::resnet101(); }, {32, 3, 224, 224}, true).back().sizes(),
            (at::IntArrayRef{32, 1000}));
  EXPECT_EQ(step([] { return models::unet(); }, {32, 3, 192, 192}, false).back().sizes(),
            (at::IntArrayRef{32, 1, 192, 192}));
  Trial trial(/*on_meta=*/true);
  EXPECT_EQ(token_training(models::llama_70b(), 2)(trial).back().sizes(),
            (at::IntArrayRef{2, 4096, 32000}));
  EXPECT_EQ(step([] { return models::amoebanetd(); }, {32, 3, 224, 224}, true).back().sizes(),
            (at::IntArrayRef{32, 1000}));
}

}  // namespace
}  // namespace gpipe
