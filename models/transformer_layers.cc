#include "models/transformer_layers.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/attention.h"

namespace gpipe::models::internal {
namespace {

using torch::nn::Linear;
using torch::nn::LinearOptions;

bool is_gpt2(const TransformerOptions& options) { return options.kind() == TransformerKind::kGPT2; }

Linear linear(const TransformerOptions& options, int64_t in, int64_t out, double scale = 1) {
  Linear layer(LinearOptions(in, out).bias(is_gpt2(options)));
  torch::nn::init::normal_(layer->weight, 0, scale * options.initializer_range());
  if (layer->bias.defined()) torch::nn::init::zeros_(layer->bias);
  return layer;
}

// What is added to the shortcut: with as many terms as there are such layers, their sum is as large
// as one (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
Linear last_linear(const TransformerOptions& options, int64_t in) {
  const double scale =
      is_gpt2(options) ? 1 / std::sqrt(2 * static_cast<double>(options.num_layers())) : 1;
  return linear(options, in, options.hidden_size(), scale);
}

torch::nn::Embedding embedding(const TransformerOptions& options, int64_t rows) {
  torch::nn::Embedding layer(rows, options.hidden_size());
  torch::nn::init::normal_(layer->weight, 0, options.initializer_range());
  return layer;
}

at::Tensor drop(const at::Tensor& input, double probability, bool train) {
  return train && probability > 0 ? at::dropout(input, probability, true) : input;
}

}  // namespace

void TokenNormImpl::reset() {
  weight = register_parameter("weight", at::ones({options_.hidden_size()}));
  if (is_gpt2(options_)) bias = register_parameter("bias", at::zeros({options_.hidden_size()}));
}

void TokenNormImpl::pretty_print(std::ostream& stream) const {
  stream << (is_gpt2(options_) ? "LayerNorm(" : "RMSNorm(") << options_.hidden_size()
         << ", eps=" << options_.norm_epsilon() << ")";
}

at::Tensor TokenNormImpl::forward(const at::Tensor& input) {
  if (is_gpt2(options_)) {
    return at::layer_norm(input, {options_.hidden_size()}, weight, bias, options_.norm_epsilon());
  }
  const at::Tensor x = input.to(at::kFloat);
  const at::Tensor variance = x.pow(2).mean(-1, /*keepdim=*/true);
  return weight * (x * at::rsqrt(variance + options_.norm_epsilon())).to(input.scalar_type());
}

void TokenEmbeddingImpl::reset() {
  cache_plan_ = nullptr;
  tokens = register_module("tokens", embedding(options_, options_.vocab_size()));
  if (is_gpt2(options_)) {
    positions = register_module("positions", embedding(options_, options_.max_positions()));
  }
}

void TokenEmbeddingImpl::pretty_print(std::ostream& stream) const { stream << "TokenEmbedding"; }

at::Tensor TokenEmbeddingImpl::apply(const at::Tensor& ids, const at::Tensor& documents) {
  TORCH_CHECK_VALUE(ids.dim() == 2 && !ids.is_floating_point() && !ids.is_complex(),
                    "a language model takes token ids, whole numbers of shape [rows, tokens], got ",
                    ids.scalar_type(), " of shape ", ids.sizes());
  TORCH_CHECK_VALUE(
      !documents.defined() || (documents.sizes() == ids.sizes() && !documents.is_floating_point() &&
                               !documents.is_complex()),
      "the tokens' documents must be whole numbers of the token ids' shape ", ids.sizes(), ", got ",
      documents.scalar_type(), " of shape ", documents.sizes());
  if (cache_plan_ != nullptr) cache_plan_->check(documents, is_training());
  at::Tensor vectors = tokens->forward(ids);
  if (!positions.is_empty()) {
    TORCH_CHECK_VALUE(ids.size(1) <= options_.max_positions(), "the model has ",
                      options_.max_positions(), " positions, got sequences of ", ids.size(1),
                      " tokens");
    if (documents.defined()) {
      vectors = vectors + positions->forward(cache_plan_ != nullptr ? cache_plan_->places(documents)
                                                                    : positions_in(documents));
    } else {
      vectors = vectors + positions->weight.slice(0, 0, ids.size(1));
    }
  }
  return drop(vectors, options_.embedding_dropout(), is_training());
}

void AttentionLayerImpl::reset() {
  cache_ = nullptr;
  const int64_t queries = options_.num_heads() * options_.size_of_head(),
                keys = options_.kv_heads() * options_.size_of_head();
  norm = register_module("norm", TokenNorm(options_));
  qkv = register_module("qkv", linear(options_, options_.hidden_size(), queries + 2 * keys));
  output = register_module("output", last_linear(options_, queries));
}

void AttentionLayerImpl::pretty_print(std::ostream& stream) const { stream << "AttentionLayer"; }

at::Tensor AttentionLayerImpl::places_of(const at::Tensor& input,
                                         const at::Tensor& documents) const {
  if (cache_ != nullptr) return cache_->plan().places(documents);
  if (documents.defined()) return positions_in(documents);
  return at::arange(input.size(1), input.options().dtype(at::kLong));
}

at::Tensor AttentionLayerImpl::attend(const at::Tensor& queries, const at::Tensor& keys,
                                      const at::Tensor& values, const at::Tensor& documents) const {
  AttentionOptions options;
  options.dropout = is_training() ? options_.attention_dropout() : 0;
  options.float32_softmax = !is_gpt2(options_);
  options.fused = options_.fused_attention();
  if (cache_ == nullptr) return causal_attention(queries, keys, values, documents, options);
  cache_->check_complete(documents);
  cache_->put(keys, values, documents);
  // Without what was just put and would be copied; and the bits of a model without a cache.
  if (cache_->plan().nothing_before) return causal_attention(queries, keys, values, {}, options);
  const auto [all_keys, all_values] = cache_->get(documents);
  return attention_up_to(cache_->plan().places(documents), queries, all_keys, all_values, options);
}

at::Tensor AttentionLayerImpl::apply(const at::Tensor& input, const at::Tensor& documents) {
  if (cache_ != nullptr) cache_->plan().check(documents, is_training());
  const int64_t heads = options_.num_heads(), kv_heads = options_.kv_heads(),
                size = options_.size_of_head();
  // (N, heads, T, size)
  const std::vector<at::Tensor> parts = qkv->forward(norm->forward(input))
                                            .unflatten(-1, {heads + 2 * kv_heads, size})
                                            .transpose(1, 2)
                                            .split_with_sizes({heads, kv_heads, kv_heads}, 1);
  at::Tensor queries = parts[0], keys = parts[1];
  if (!is_gpt2(options_)) {
    const Rotation angles =
        rotation(places_of(input, documents), size, options_.rope_theta(), input.scalar_type());
    queries = rotate(queries, angles);
    keys = rotate(keys, angles);
  }
  const at::Tensor seen = attend(queries, keys, parts[2], documents).transpose(1, 2).flatten(2);
  return input + drop(output->forward(seen), options_.residual_dropout(), is_training());
}

void MlpLayerImpl::reset() {
  const int64_t hidden = options_.hidden_size(), inner = options_.mlp_size();
  norm = register_module("norm", TokenNorm(options_));
  if (!is_gpt2(options_)) gate = register_module("gate", linear(options_, hidden, inner));
  up = register_module("up", linear(options_, hidden, inner));
  down = register_module("down", last_linear(options_, inner));
}

void MlpLayerImpl::pretty_print(std::ostream& stream) const { stream << "MlpLayer"; }

at::Tensor MlpLayerImpl::forward(const at::Tensor& input) {
  const at::Tensor x = norm->forward(input);
  const at::Tensor inner = gate.is_empty() ? at::gelu(up->forward(x), "tanh")
                                           : at::silu(gate->forward(x)) * up->forward(x);
  return input + drop(down->forward(inner), options_.residual_dropout(), is_training());
}

TokenHeadImpl::TokenHeadImpl(const TransformerOptions& options, const at::Tensor& tied)
    : weight(tied), options_(options), tied_(tied.defined()) {
  reset();
}

void TokenHeadImpl::reset() {
  if (tied_) return;
  weight = register_parameter("weight", at::empty({options_.vocab_size(), options_.hidden_size()}));
  torch::nn::init::normal_(weight, 0, options_.initializer_range());
}

void TokenHeadImpl::pretty_print(std::ostream& stream) const {
  stream << "TokenHead(" << options_.hidden_size() << ", " << options_.vocab_size()
         << (tied_ ? ", tied)" : ")");
}

std::shared_ptr<torch::nn::Module> TokenHeadImpl::clone(
    const std::optional<c10::Device>& device) const {
  TORCH_CHECK_VALUE(!tied_,
                    "a model with a tied head cannot be cloned: the clone's head would have the "
                    "original's matrix; make another one with transformer() and copy its values");
  return Cloneable::clone(device);
}

std::vector<at::Tensor> TokenHeadImpl::tied_parameters() const {
  return tied_ ? std::vector<at::Tensor>{weight} : std::vector<at::Tensor>();
}

void TokenHeadImpl::use_tied_parameters(const std::vector<at::Tensor>& parameters) {
  if (tied_) weight = parameters.at(0);
}

at::Tensor TokenHeadImpl::logits(const at::Tensor& input) const {
  return at::linear(input, matrix_for(input));
}

const at::Tensor& TokenHeadImpl::matrix_for(const at::Tensor& input) const {
  TORCH_CHECK_VALUE(input.device() == weight.device(), "the head runs on ", input.device(),
                    ", but is tied to an embedding on ", weight.device(),
                    "; put both on one device, or take tied(false)");
  return weight;
}

at::Tensor TokenHeadImpl::forward(const at::Tensor& input) {
  return in_loss() ? input : logits(input);
}

}  // namespace gpipe::models::internal
