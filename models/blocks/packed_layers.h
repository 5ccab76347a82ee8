// packed_layers: the layers of a language model over rows of several documents.
//
// They take and give {vectors, documents}: the numbers of the tokens' documents, (N, T), go from
// layer to layer beside the vectors.
#ifndef MODELS_BLOCKS_PACKED_LAYERS_H_
#define MODELS_BLOCKS_PACKED_LAYERS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "models/blocks/transformer_layers.h"

namespace gpipe::models::internal {

// A layer with the parameters of `Layer`. The last layer of a model does not return documents.
template <typename Layer>
class PackedImpl : public Layer {
 public:
  using Layer::Layer;
  explicit PackedImpl(const Layer& layer) : Layer(layer) {}

  auto forward(const std::vector<at::Tensor>& values) {
    TORCH_CHECK_VALUE(values.size() == 2, "a model of packed documents takes two tensors, ",
                      "token ids and the numbers of their documents, got ", values.size());
    const at::Tensor &x = values[0], &documents = values[1];
    if constexpr (std::is_base_of_v<TokenHeadImpl, Layer>) {
      return Layer::forward(x);
    } else if constexpr (std::is_same_v<Layer, TokenEmbeddingImpl> ||
                         std::is_same_v<Layer, AttentionLayerImpl>) {
      return std::vector<at::Tensor>{Layer::apply(x, documents), documents};
    } else {
      return std::vector<at::Tensor>{Layer::forward(x), documents};
    }
  }

  // clone() is overridden, because the clone() of `Layer` would return a `Layer`, which takes one
  // tensor.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override {
    const std::shared_ptr<torch::nn::Module> layer = Layer::clone(device);
    return std::make_shared<PackedImpl>(dynamic_cast<const Layer&>(*layer));
  }
};

}  // namespace gpipe::models::internal

#endif  // MODELS_BLOCKS_PACKED_LAYERS_H_
