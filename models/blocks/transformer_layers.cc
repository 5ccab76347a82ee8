#include "models/blocks/transformer_layers.h"

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/blocks/attention.h"
#include "models/blocks/experts.h"

namespace gpipe::models::internal {
namespace {

using torch::nn::Linear;
using torch::nn::LinearOptions;

template <typename Layer = AdaptableLinear>
Layer linear(const TransformerOptions& options, int64_t in, int64_t out, bool bias,
             double scale = 1) {
  Layer layer(LinearOptions(in, out).bias(bias));
  torch::nn::init::normal_(layer->weight, 0, scale * options.initializer_range());
  if (layer->bias.defined()) torch::nn::init::zeros_(layer->bias);
  return layer;
}

// The factor for the last matrix of each layer with a shortcut. With it, the sum over all these
// layers is as large as one of them would be without.
double last_scale(const TransformerOptions& options) {
  return options.block().small_last_matrices()
             ? 1 / std::sqrt(2 * static_cast<double>(options.num_layers()))
             : 1;
}

AdaptableLinear last_linear(const TransformerOptions& options, int64_t in, bool bias) {
  return linear(options, in, options.hidden_size(), bias, last_scale(options));
}

std::string shortcut_name(const TransformerOptions& options, int64_t block) {
  return options.block().parallel() ? "shortcut" + std::to_string(block) : "";
}

std::string logits_name(const TransformerOptions& options, int64_t block) {
  return options.router_logits() ? "router" + std::to_string(block) : "";
}

// A list of this one skip, or an empty list for an empty name.
std::vector<std::string> named(const std::string& skip) {
  return skip.empty() ? std::vector<std::string>() : std::vector<std::string>{skip};
}

torch::nn::Embedding embedding(const TransformerOptions& options, int64_t rows) {
  torch::nn::Embedding layer(rows, options.hidden_size());
  torch::nn::init::normal_(layer->weight, 0, options.initializer_range());
  return layer;
}

// Looks up the vectors of the ids. On the CPU an id outside the vocabulary gets a better error,
// because LibTorch's names neither the id nor the vocabulary. On other devices ids are not looked
// at, because that would make the caller wait.
at::Tensor vectors_of(torch::nn::EmbeddingImpl& tokens, const at::Tensor& ids) {
  try {
    return tokens.forward(ids);
  } catch (const c10::IndexError&) {
    const int64_t words = tokens.weight.size(0);
    const at::Tensor wrong = ids.masked_select(ids.lt(0).logical_or(ids.ge(words)));
    if (wrong.numel() == 0) throw;
    TORCH_CHECK_VALUE(false, "token ids must be from 0 to ", words - 1, " (vocab_size), got ",
                      wrong[0].item<int64_t>());
  }
}

at::Tensor drop(const at::Tensor& input, double probability, bool train) {
  return train && probability > 0 ? at::dropout(input, probability, true) : input;
}

bool norms_before(const TransformerOptions& options) {
  return options.block().norm_place() != NormPlace::kBehind;
}
bool norms_behind(const TransformerOptions& options) {
  return options.block().norm_place() != NormPlace::kBefore;
}

at::Tensor normed(TokenNorm norm, const at::Tensor& input) {
  return norm.is_empty() ? input : norm->forward(input);
}

at::Tensor activated(const at::Tensor& input, Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return at::gelu(input, "tanh");
    case Activation::kGelu:
      return at::gelu(input);
    case Activation::kSilu:
      return at::silu(input);
    case Activation::kRelu:
      return at::relu(input);
  }
  return {};
}

}  // namespace

void TokenNormImpl::reset() {
  weight = register_parameter(
      "weight", kind_ == NormKind::kRMSNormFromOne ? at::zeros({width_}) : at::ones({width_}));
  if (kind_ == NormKind::kLayerNorm) bias = register_parameter("bias", at::zeros({width_}));
}

void TokenNormImpl::pretty_print(std::ostream& stream) const {
  stream << (kind_ == NormKind::kLayerNorm ? "LayerNorm(" : "RMSNorm(") << width_
         << ", eps=" << epsilon_ << ")";
}

at::Tensor TokenNormImpl::forward(const at::Tensor& input) {
  if (kind_ == NormKind::kLayerNorm) {
    return at::layer_norm(input, {width_}, weight, bias, epsilon_);
  }
  const at::Tensor x = input.to(at::kFloat);
  const at::Tensor variance = x.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor result = x * at::rsqrt(variance + epsilon_);
  switch (kind_) {
    case NormKind::kRMSNormFromOne:
      return (result * (1 + weight.to(at::kFloat))).to(input.scalar_type());
    case NormKind::kRMSNormRounded:
      return (weight * result).to(input.scalar_type());
    default:
      return weight * result.to(input.scalar_type());
  }
}

void TokenEmbeddingImpl::reset() {
  cache_plan_ = nullptr;
  tokens = register_module("tokens", embedding(options_, options_.vocab_size()));
  if (options_.block().learned_positions()) {
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
  at::Tensor vectors = vectors_of(*tokens, ids);
  if (options_.block().scaled_embedding()) {
    const auto root = std::sqrt(static_cast<double>(options_.hidden_size()));
    vectors =
        vectors * at::full({}, root, vectors.options().dtype(at::kFloat)).to(vectors.scalar_type());
  }
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

AttentionLayerImpl::AttentionLayerImpl(const TransformerOptions& options, int64_t block)
    : Skippable(named(shortcut_name(options, block)), {}),
      options_(options),
      kind_(options.block().kind_of(block)),
      shortcut_(shortcut_name(options, block)) {
  reset();
}

void AttentionLayerImpl::reset() {
  cache_ = nullptr;
  const BlockOptions& block = options_.block();
  const int64_t size = options_.size_of_head(), queries = options_.num_heads() * size,
                keys = options_.kv_heads() * size;
  if (norms_before(options_)) norm = register_module("norm", TokenNorm(options_));
  qkv = register_module(
      "qkv", linear(options_, options_.hidden_size(), queries + 2 * keys, block.qkv_bias()));
  if (block.head_norm() != HeadNorm::kNone) {
    const bool each = block.head_norm() == HeadNorm::kEachHead;
    query_norm = register_module("query_norm", TokenNorm(options_, each ? size : queries));
    key_norm = register_module("key_norm", TokenNorm(options_, each ? size : keys));
  }
  output = register_module("output", last_linear(options_, queries, block.output_bias()));
  if (norms_behind(options_)) post_norm = register_module("post_norm", TokenNorm(options_));
}

void AttentionLayerImpl::pretty_print(std::ostream& stream) const { stream << "AttentionLayer"; }

std::vector<at::Tensor> AttentionLayerImpl::queries_keys_values(const at::Tensor& input) const {
  const int64_t heads = options_.num_heads(), kv_heads = options_.kv_heads(),
                size = options_.size_of_head();
  AdaptableLinear product = qkv;
  const at::Tensor all = product->forward(normed(norm, input));
  const HeadNorm head_norm = options_.block().head_norm();
  std::vector<at::Tensor> parts;
  if (options_.block().qkv_by_head()) {
    parts = all.unflatten(-1, {heads, 3 * size}).transpose(1, 2).chunk(3, -1);
  } else if (head_norm == HeadNorm::kAllHeads) {
    // The norm is over all heads together, so it comes before the heads are separated.
    parts = all.split_with_sizes({heads * size, kv_heads * size, kv_heads * size}, -1);
    parts[0] = normed(query_norm, parts[0]);
    parts[1] = normed(key_norm, parts[1]);
    for (at::Tensor& part : parts) part = part.unflatten(-1, {-1, size}).transpose(1, 2);
    return parts;
  } else {
    parts = all.unflatten(-1, {heads + 2 * kv_heads, size})
                .transpose(1, 2)
                .split_with_sizes({heads, kv_heads, kv_heads}, 1);
  }
  if (head_norm == HeadNorm::kEachHead) {
    parts[0] = normed(query_norm, parts[0]);
    parts[1] = normed(key_norm, parts[1]);
  }
  return parts;
}

AttentionOptions AttentionLayerImpl::attention_options() const {
  const BlockOptions& block = options_.block();
  AttentionOptions options;
  options.dropout = is_training() ? options_.attention_dropout() : 0;
  options.float32_softmax = block.float32_softmax();
  options.fused = options_.fused_attention();
  options.scale = block.attention_scale();
  options.soft_cap = block.attention_soft_cap();
  options.window = kind_.window();
  return options;
}

Rotation AttentionLayerImpl::rotation_at(const at::Tensor& places, const at::Tensor& lengths,
                                         const at::Tensor& heads) const {
  const at::ScalarType type = options_.block().float32_rotation()
                                  ? at::promote_types(heads.scalar_type(), at::kFloat)
                                  : heads.scalar_type();
  return rotation(options_, kind_.rotary(), places, lengths, type);
}

at::Tensor AttentionLayerImpl::attend(at::Tensor queries, at::Tensor keys, const at::Tensor& values,
                                      const at::Tensor& documents) const {
  if (kind_.rotates()) {
    at::Tensor places, lengths;
    if (documents.defined()) {
      places = positions_in(documents);
      if (kind_.rotary().depends_on_length()) lengths = lengths_in(documents);
    } else {
      places = at::arange(queries.size(2), queries.options().dtype(at::kLong));
      if (kind_.rotary().depends_on_length())
        lengths = at::full({1}, queries.size(2), places.options());
    }
    const Rotation angles = rotation_at(places, lengths, queries);
    queries = rotate(queries, angles);
    keys = rotate(keys, angles);
  }
  return causal_attention(queries, keys, values, documents, attention_options());
}

at::Tensor AttentionLayerImpl::attend_with_cache(at::Tensor queries, at::Tensor keys,
                                                 const at::Tensor& values,
                                                 const at::Tensor& slots) const {
  const CachePlan& plan = cache_->plan();
  const at::Tensor places = plan.places(slots);
  // Keys whose angles change as the text grows are kept unrotated, and rotated at each call.
  const bool grows = kind_.rotates() && kind_.rotary().depends_on_length();
  const at::Tensor lengths = grows ? plan.lengths(slots) : at::Tensor();  // (N, 1)
  const at::Tensor bare_keys = keys;
  if (kind_.rotates()) {
    const Rotation angles = rotation_at(places, lengths, queries);
    queries = rotate(queries, angles);
    keys = rotate(keys, angles);
  }
  cache_->check_complete(slots);
  SeenKeys seen = cache_->update(grows ? bare_keys : keys, values, slots);
  // If all rows were empty, attention is computed as without a cache, so the logits have the same
  // bits.
  if (plan.nothing_before) return causal_attention(queries, keys, values, {}, attention_options());
  if (grows) {
    const at::Tensor all_places = seen.places.expand({places.size(0), -1});
    seen.keys = rotate(seen.keys, rotation_at(all_places, lengths, seen.keys));
  }
  return attention_up_to(places, seen.places, queries, seen.keys, seen.values, attention_options());
}

at::Tensor AttentionLayerImpl::apply(const at::Tensor& input, const at::Tensor& documents) {
  if (cache_ != nullptr) cache_->plan().check(documents, is_training());
  std::vector<at::Tensor> parts = queries_keys_values(input);
  const at::Tensor heads = cache_ != nullptr
                               ? attend_with_cache(parts[0], parts[1], parts[2], documents)
                               : attend(parts[0], parts[1], parts[2], documents);
  const at::Tensor result =
      drop(normed(post_norm, output->forward(heads.transpose(1, 2).flatten(2))),
           options_.residual_dropout(), is_training());
  if (shortcut_.empty()) return input + result;
  stash(shortcut_, input);
  return result;
}

MlpLayerImpl::MlpLayerImpl(const TransformerOptions& options, int64_t block)
    : Skippable({}, named(shortcut_name(options, block))),
      options_(options),
      shortcut_(shortcut_name(options, block)) {
  reset();
}

void MlpLayerImpl::reset() {
  const BlockOptions& block = options_.block();
  const int64_t hidden = options_.hidden_size(), inner = options_.mlp_size();
  if (norms_before(options_)) norm = register_module("norm", TokenNorm(options_));
  if (block.gated() && !block.gate_in_up()) {
    gate = register_module("gate", linear(options_, hidden, inner, block.mlp_bias()));
  }
  up = register_module(
      "up", linear(options_, hidden, block.gate_in_up() ? 2 * inner : inner, block.mlp_bias()));
  down = register_module("down", last_linear(options_, inner, block.mlp_bias()));
  if (norms_behind(options_)) post_norm = register_module("post_norm", TokenNorm(options_));
}

void MlpLayerImpl::pretty_print(std::ostream& stream) const { stream << "MlpLayer"; }

at::Tensor MlpLayerImpl::forward(const at::Tensor& input) {
  const BlockOptions& block = options_.block();
  const at::Tensor shortcut = shortcut_.empty() ? input : pop(shortcut_);
  const at::Tensor x = normed(norm, shortcut);
  at::Tensor inner;
  if (block.gate_in_up()) {
    const std::vector<at::Tensor> halves = up->forward(x).chunk(2, -1);
    inner = activated(halves[0], block.activation()) * halves[1];
  } else if (block.gated()) {
    inner = activated(gate->forward(x), block.activation()) * up->forward(x);
  } else {
    inner = activated(up->forward(x), block.activation());
  }
  const at::Tensor result =
      drop(normed(post_norm, down->forward(inner)), options_.residual_dropout(), is_training());
  // The sum is in the order of Python's `transformers`, so that it rounds alike.
  return shortcut_.empty() ? input + result : result + input + shortcut;
}

void ExpertMatricesImpl::reset() {
  weight = register_parameter("weight", at::empty(shape_));
  torch::nn::init::normal_(weight, 0, deviation_);
}

ExpertLayerImpl::ExpertLayerImpl(const TransformerOptions& options, int64_t block)
    : Skippable(named(logits_name(options, block)), named(shortcut_name(options, block))),
      options_(options),
      shortcut_(shortcut_name(options, block)),
      logits_name_(logits_name(options, block)) {
  reset();
}

void ExpertLayerImpl::reset() {
  const ExpertOptions& experts = options_.block().experts();
  const int64_t hidden = options_.hidden_size(), inner = options_.expert_size();
  const double deviation = options_.initializer_range();
  if (norms_before(options_)) norm = register_module("norm", TokenNorm(options_));
  router = register_module("router", linear<Linear>(options_, hidden, experts.count(), false));
  gate_up = register_module(
      "gate_up",
      ExpertMatrices(std::vector<int64_t>{experts.count(), 2 * inner, hidden}, deviation));
  down =
      register_module("down", ExpertMatrices(std::vector<int64_t>{experts.count(), hidden, inner},
                                             deviation * last_scale(options_)));
  if (experts.shared_size() > 0) {
    const int64_t shared = experts.shared_size();
    shared_router = register_module("shared_router", linear(options_, hidden, 1, false));
    shared_gate = register_module("shared_gate", linear(options_, hidden, shared, false));
    shared_up = register_module("shared_up", linear(options_, hidden, shared, false));
    shared_down = register_module("shared_down", last_linear(options_, shared, false));
  }
  if (norms_behind(options_)) post_norm = register_module("post_norm", TokenNorm(options_));
}

void ExpertLayerImpl::pretty_print(std::ostream& stream) const {
  stream << "ExpertLayer(" << options_.block().experts().count() << ")";
}

at::Tensor ExpertLayerImpl::forward(const at::Tensor& input) {
  const BlockOptions& block = options_.block();
  const at::Tensor shortcut = shortcut_.empty() ? input : pop(shortcut_);
  const at::Tensor tokens = normed(norm, shortcut).reshape({-1, options_.hidden_size()});
  const at::Tensor logits = router->forward(tokens);
  if (!logits_name_.empty()) {
    stash(logits_name_, logits.view({input.size(0), input.size(1), -1}));
  }
  const auto activation = [&](const at::Tensor& x) { return activated(x, block.activation()); };
  at::Tensor sum = through_experts(tokens, route(logits, block.experts()), gate_up->weight,
                                   down->weight, block.experts().worst_on_meta(), activation);
  if (!shared_router.is_empty()) {
    const at::Tensor shared =
        shared_down->forward(activation(shared_gate->forward(tokens)) * shared_up->forward(tokens));
    sum = sum + at::sigmoid(shared_router->forward(tokens)) * shared;
  }
  const at::Tensor result = drop(normed(post_norm, sum.view(shortcut.sizes())),
                                 options_.residual_dropout(), is_training());
  return shortcut_.empty() ? input + result : result + input + shortcut;
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
  const at::Tensor logits = at::linear(input, matrix_for(input));
  const double cap = soft_cap();
  return cap > 0 ? at::tanh(logits / cap) * cap : logits;
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

namespace {

std::vector<std::string> all_logits_names(const TransformerOptions& options) {
  std::vector<std::string> names;
  for (int64_t block = 0; block < options.num_layers(); ++block) {
    if (options.block().has_experts(block)) names.push_back(logits_name(options, block));
  }
  return names;
}

}  // namespace

RoutedHeadImpl::RoutedHeadImpl(const TransformerOptions& options, const at::Tensor& tied)
    : TokenHeadImpl(options, tied), Skippable({}, all_logits_names(options)) {}

std::shared_ptr<torch::nn::Module> RoutedHeadImpl::clone(
    const std::optional<c10::Device>& device) const {
  const std::shared_ptr<torch::nn::Module> head = TokenHeadImpl::clone(device);
  return std::make_shared<RoutedHeadImpl>(dynamic_cast<const TokenHeadImpl&>(*head), *this);
}

std::vector<at::Tensor> RoutedHeadImpl::forward(const at::Tensor& input) {
  std::vector<at::Tensor> routers;
  for (const std::string& name : pops()) routers.push_back(pop(name));
  return {TokenHeadImpl::forward(input), at::stack(routers, 2)};
}

}  // namespace gpipe::models::internal
