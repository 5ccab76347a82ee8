#include "examples/language_model/sample.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "examples/language_model/documents.h"
#include "models/transformer.h"

namespace language_model {
namespace {

constexpr int64_t kLength = 12;

torch::nn::Sequential make_model(gpipe::models::TransformerKind kind) {
  torch::manual_seed(0);
  gpipe::models::TransformerOptions options(kind);
  options.vocab_size(kVocabulary).max_positions(kLength).hidden_size(16).num_layers(2).num_heads(2);
  options.intermediate_size(32).tied(false).packed(true).initializer_range(0.2);
  torch::nn::Sequential model = gpipe::models::transformer(options);
  // Makes the token at the end of a document more probable, so that texts have ends of documents.
  const at::NoGradGuard no_grad;
  model->named_parameters()["head.weight"][kEnd].mul_(4);
  return model;
}

std::unique_ptr<Network> make_network(gpipe::models::TransformerKind kind, bool plain) {
  std::unique_ptr<Network> network =
      plain
          ? make_plain(make_model(kind), false)
          : make_pipeline(gpipe::GPipe(make_model(kind), gpipe::GPipeOptions({2, 3, 2}).chunks(4)),
                          gpipe::StepOptions(), false);
  network->train(false);
  return network;
}

SampleOptions options(int64_t samples, int64_t bytes, bool cache) {
  SampleOptions options;
  options.samples = samples;
  options.bytes = bytes;
  options.prompt = "And ";
  options.length = kLength;
  options.cache = cache;
  return options;
}

TEST(Samples, AreTheSameWithACacheAndWithout) {
  for (const auto kind :
       {gpipe::models::TransformerKind::kLlama, gpipe::models::TransformerKind::kGPT2}) {
    for (const double temperature : {0.0, 1.0}) {
      std::vector<std::vector<std::string>> all;
      for (const bool plain : {false, true}) {
        for (const bool cache : {false, true}) {
          const auto network = make_network(kind, plain);
          // The text has 5 tokens of the prompt and 7 more, so the model never looks back further
          // than the length.
          SampleOptions some = options(3, 7, cache);
          some.temperature = temperature;
          all.push_back(write_samples(*network, some));
        }
      }
      for (const std::string& text : all[0]) EXPECT_EQ(text.substr(0, 4), "And ");
      for (const auto& texts : all) EXPECT_EQ(texts, all[0]);
      const std::set<std::string> different(all[0].begin(), all[0].end());
      EXPECT_EQ(different.size(), temperature == 0 ? 1U : 3U);
    }
  }
}

// Rows reach the ends of documents at different times. Each goes on there with a new document, with
// and without a cache.
TEST(Samples, GoOnBehindADocumentsEndAndAFullCache) {
  for (const auto kind :
       {gpipe::models::TransformerKind::kLlama, gpipe::models::TransformerKind::kGPT2}) {
    const auto network = make_network(kind, /*plain=*/false);
    const std::vector<std::string> texts = write_samples(*network, options(4, 60, true));
    size_t bytes = 0, longest = 0;
    for (const std::string& text : texts) {
      longest = std::max(longest, text.size());
      bytes += text.size() - 4;
    }
    EXPECT_GT(longest, 30U) << "more than the cache has places, even if it has ended twice";
    EXPECT_LT(bytes, 4 * 60U) << "some documents have ended";
    EXPECT_EQ(write_samples(*network, options(4, 60, true)), texts);
  }
}

TEST(Samples, TheNetworkIsAsBeforeAfterwards) {
  const auto network = make_network(gpipe::models::TransformerKind::kGPT2, /*plain=*/false);
  const SampleOptions few = options(2, 3, true);
  const auto texts = write_samples(*network, few);
  const at::Tensor ids = at::zeros({2, 4}, at::kLong);
  Batch batch{ids, ids, ids, 8};
  const double before = network->evaluate(batch);
  EXPECT_EQ(write_samples(*network, few), texts);
  EXPECT_EQ(network->evaluate(batch), before);
  network->train(true);
  EXPECT_GT(network->step(batch), 0);
}

}  // namespace
}  // namespace language_model
