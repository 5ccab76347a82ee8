#include "models/transformer.h"

#include <cstdint>
#include <memory>
#include <string>

#include "models/blocks/packed_layers.h"
#include "models/blocks/transformer_layers.h"

namespace gpipe::models {

namespace {

// Adds a layer: as it is, or, if rows hold several documents, as a PackedImpl.
template <typename LayerImpl>
void push(torch::nn::Sequential& model, const std::string& name,
          const std::shared_ptr<LayerImpl>& layer, bool packed) {
  if (packed) {
    model->push_back(name, std::make_shared<internal::PackedImpl<LayerImpl>>(*layer));
  } else {
    model->push_back(name, layer);
  }
}

}  // namespace

torch::nn::Sequential transformer(const TransformerOptions& options) {
  check(options);
  const bool packed = options.packed();
  torch::nn::Sequential model;
  const internal::TokenEmbedding embedding(options);
  push(model, "embedding", embedding.ptr(), packed);
  for (int64_t block = 0; block < options.num_layers(); ++block) {
    const std::string prefix = "block" + std::to_string(block) + "_";
    push(model, prefix + "attention", internal::AttentionLayer(options, block).ptr(), packed);
    if (options.block().has_experts(block)) {
      push(model, prefix + "mlp", internal::ExpertLayer(options, block).ptr(), packed);
    } else {
      push(model, prefix + "mlp", internal::MlpLayer(options, block).ptr(), packed);
    }
  }
  push(model, "norm", internal::TokenNorm(options).ptr(), packed);
  const at::Tensor tied = options.tied() ? embedding->tokens->weight : at::Tensor();
  if (options.router_logits()) {
    push(model, "head", internal::RoutedHead(options, tied).ptr(), packed);
  } else {
    push(model, "head", internal::TokenHead(options, tied).ptr(), packed);
  }
  return model;
}

}  // namespace gpipe::models
