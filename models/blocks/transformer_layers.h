// transformer_layers: the layers of a decoder-only language model.
//
// Each takes and gives one tensor, (N, T, hidden_size), except for the first and the last, so that
// a pipeline may be cut between any two. A block is two layers, each with its own shortcut: cuts
// between them cost no more than between blocks, and parts half as large balance better.
//
// Two kinds of tensors travel beside this tensor, as skips: the input of a parallel block goes to
// its MLP, and the logits of routers go to the head.
#ifndef MODELS_BLOCKS_TRANSFORMER_LAYERS_H_
#define MODELS_BLOCKS_TRANSFORMER_LAYERS_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "models/adaptable_linear.h"
#include "models/blocks/attention.h"
#include "models/blocks/layer_cache.h"
#include "models/blocks/rotary.h"
#include "models/transformer_options.h"
#include "skip/skippable.h"
#include "tied/tied_layer.h"

namespace gpipe::models::internal {

// A norm over the last dimension, of the block's NormKind.
class TokenNormImpl : public torch::nn::Cloneable<TokenNormImpl> {
 public:
  explicit TokenNormImpl(const TransformerOptions& options)
      : TokenNormImpl(options, options.hidden_size()) {}
  TokenNormImpl(const TransformerOptions& options, int64_t width)
      : kind_(options.block().norm()), width_(width), epsilon_(options.norm_epsilon()) {
    reset();
  }
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;  // only kLayerNorm has a bias

 private:
  NormKind kind_;
  int64_t width_;
  double epsilon_;
};
TORCH_MODULE(TokenNorm);

// Token ids, (N, T) -> vectors. With learned_positions, the vector of the place in the sequence is
// added.
class TokenEmbeddingImpl : public torch::nn::Cloneable<TokenEmbeddingImpl> {
 public:
  explicit TokenEmbeddingImpl(const TransformerOptions& options) : options_(options) { reset(); }
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& ids) { return apply(ids, {}); }
  // `documents`: the numbers of the tokens' documents, (N, T); places count from the start of each
  // document. With a cache's plan they are slots (models/blocks/layer_cache.h), which name the
  // places.
  at::Tensor apply(const at::Tensor& ids, const at::Tensor& documents);

  const TransformerOptions& options() const { return options_; }
  // Set by a KvCache, for its life; null otherwise, and in a clone.
  void use_cache_plan(std::shared_ptr<const CachePlan> plan) { cache_plan_ = std::move(plan); }
  const std::shared_ptr<const CachePlan>& cache_plan() const { return cache_plan_; }

  torch::nn::Embedding tokens{nullptr}, positions{nullptr};

 private:
  TransformerOptions options_;
  std::shared_ptr<const CachePlan> cache_plan_;
};
TORCH_MODULE(TokenEmbedding);

// x + attention(norm(x)), or as the block's NormPlace says. `qkv` makes queries of all heads, then
// keys, then values; with qkv_by_head all of the first head, then of the second.
//
// In a parallel block: attention(norm(x)), and x goes to the MLP.
class AttentionLayerImpl : public torch::nn::Cloneable<AttentionLayerImpl>, public skip::Skippable {
 public:
  // `block` is its number, which decides its kind (BlockOptions::kind_of).
  explicit AttentionLayerImpl(const TransformerOptions& options, int64_t block = 0);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input) { return apply(input, {}); }
  // `documents`: the numbers of the tokens' documents, (N, T); a token looks only at its own
  // document. With a cache they are slots: tokens look at those of their rows in the cache, and are
  // kept there.
  at::Tensor apply(const at::Tensor& input, const at::Tensor& documents);

  const LayerKind& kind() const { return kind_; }
  // Set by a KvCache, for its life; null otherwise, and in a clone.
  void use_cache(std::shared_ptr<LayerCache> cache) { cache_ = std::move(cache); }

  TokenNorm norm{nullptr}, post_norm{nullptr};  // before and behind
  TokenNorm query_norm{nullptr}, key_norm{nullptr};
  AdaptableLinear qkv{nullptr}, output{nullptr};

 private:
  // Returns three tensors (N, heads, T, size), normed, not rotated.
  std::vector<at::Tensor> queries_keys_values(const at::Tensor& input) const;
  // The rotation of tokens at these places of texts of these lengths.
  Rotation rotation_at(const at::Tensor& places, const at::Tensor& lengths,
                       const at::Tensor& heads) const;
  at::Tensor attend(at::Tensor queries, at::Tensor keys, const at::Tensor& values,
                    const at::Tensor& documents) const;
  at::Tensor attend_with_cache(at::Tensor queries, at::Tensor keys, const at::Tensor& values,
                               const at::Tensor& slots) const;
  AttentionOptions attention_options() const;

  TransformerOptions options_;
  LayerKind kind_;
  std::string shortcut_;  // a skip's name; "": the block is not parallel
  std::shared_ptr<LayerCache> cache_;
};
TORCH_MODULE(AttentionLayer);

// x + mlp(norm(x)), or as the block's NormPlace says: down(activation(up)), or, if it is gated,
// down(activation(gate) * up). In a parallel block: attention's result + x + mlp(norm(x)).
class MlpLayerImpl : public torch::nn::Cloneable<MlpLayerImpl>, public skip::Skippable {
 public:
  explicit MlpLayerImpl(const TransformerOptions& options, int64_t block = 0);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input);

  TokenNorm norm{nullptr}, post_norm{nullptr};                // before and behind
  AdaptableLinear gate{nullptr}, up{nullptr}, down{nullptr};  // no `gate` with gate_in_up

 private:
  TransformerOptions options_;
  std::string shortcut_;
};
TORCH_MODULE(MlpLayer);

// The matrices of all experts, (experts, out, in).
class ExpertMatricesImpl : public torch::nn::Cloneable<ExpertMatricesImpl> {
 public:
  ExpertMatricesImpl(std::vector<int64_t> shape, double deviation)
      : shape_(std::move(shape)), deviation_(deviation) {
    reset();
  }
  void reset() override;
  void pretty_print(std::ostream& stream) const override { stream << "ExpertMatrices" << shape_; }

  at::Tensor weight;

 private:
  std::vector<int64_t> shape_;
  double deviation_;
};
TORCH_MODULE(ExpertMatrices);

// As MlpLayer, with a mixture of experts instead of the MLP (ExpertOptions). With router_logits,
// the router's logits, (N, T, experts), go to the head.
class ExpertLayerImpl : public torch::nn::Cloneable<ExpertLayerImpl>, public skip::Skippable {
 public:
  explicit ExpertLayerImpl(const TransformerOptions& options, int64_t block = 0);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input);

  TokenNorm norm{nullptr}, post_norm{nullptr};  // before and behind
  torch::nn::Linear router{nullptr};
  ExpertMatrices gate_up{nullptr}, down{nullptr};  // the gate's rows first
  AdaptableLinear shared_router{nullptr}, shared_gate{nullptr}, shared_up{nullptr},
      shared_down{nullptr};

 private:
  TransformerOptions options_;
  std::string shortcut_, logits_name_;  // skips; "": there is none
};
TORCH_MODULE(ExpertLayer);

// Vectors -> logits, (N, T, vocab_size); with head_in_loss it hands the vectors on.
class TokenHeadImpl : public torch::nn::Cloneable<TokenHeadImpl>, public TiedLayer {
 public:
  // A head with a matrix of its own, or tied to an embedding's. The embedding's matrix is used, but
  // not registered here: LibTorch's optimizers step a parameter twice that is registered twice.
  TokenHeadImpl(const TransformerOptions& options, const at::Tensor& tied);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  // Throws c10::ValueError for a tied head: a clone of it alone would be tied to the original.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override;

  at::Tensor forward(const at::Tensor& input);
  std::vector<at::Tensor> tied_parameters() const override;
  void use_tied_parameters(const std::vector<at::Tensor>& parameters) override;

  bool in_loss() const { return options_.head_in_loss(); }
  double soft_cap() const { return options_.block().logit_soft_cap(); }
  at::Tensor logits(const at::Tensor& input) const;
  // The weight. Throws c10::ValueError if it is on another device than the input, as a tied one may
  // be.
  const at::Tensor& matrix_for(const at::Tensor& input) const;

  at::Tensor weight;  // (vocab_size, hidden_size)

 private:
  TransformerOptions options_;
  bool tied_;
};
TORCH_MODULE(TokenHead);

// A head that gives {logits, router logits}, the latter (N, T, blocks with experts, experts).
class RoutedHeadImpl : public TokenHeadImpl, public skip::Skippable {
 public:
  RoutedHeadImpl(const TransformerOptions& options, const at::Tensor& tied);
  RoutedHeadImpl(const TokenHeadImpl& head, const skip::Skippable& skips)
      : TokenHeadImpl(head), Skippable(skips) {}
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override;

  std::vector<at::Tensor> forward(const at::Tensor& input);
};
TORCH_MODULE(RoutedHead);

}  // namespace gpipe::models::internal

#endif  // MODELS_BLOCKS_TRANSFORMER_LAYERS_H_
