#include "models/transformer.h"

#include <cstdint>
#include <string>

#include "models/transformer_layers.h"

namespace gpipe::models {

torch::nn::Sequential transformer(const TransformerOptions& options) {
  check(options);
  torch::nn::Sequential model;
  const internal::TokenEmbedding embedding(options);
  model->push_back("embedding", embedding);
  for (int64_t block = 0; block < options.num_layers(); ++block) {
    const std::string prefix = "block" + std::to_string(block) + "_";
    model->push_back(prefix + "attention", internal::AttentionLayer(options));
    model->push_back(prefix + "mlp", internal::MlpLayer(options));
  }
  model->push_back("norm", internal::TokenNorm(options));
  const at::Tensor tied = options.tied() ? embedding->tokens->weight : at::Tensor();
  model->push_back("head", internal::TokenHead(options, tied));
  return model;
}

}  // namespace gpipe::models
