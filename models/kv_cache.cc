#include "models/kv_cache.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "models/blocks/layer_cache.h"
#include "models/blocks/packed_layers.h"
#include "models/blocks/transformer_layers.h"

namespace gpipe::models {

using internal::AttentionLayerImpl;
using internal::LayerCache;
using internal::PackedImpl;
using internal::TokenEmbeddingImpl;

KvCache::KvCache(torch::nn::Module& model, int64_t rows, int64_t length)
    : plan_(std::make_shared<internal::CachePlan>()) {
  TORCH_CHECK_VALUE(rows > 0 && length > 0, "a KvCache needs rows and places, got ", rows,
                    " rows of ", length);
  constexpr int64_t kMostPlaces = int64_t{1} << 40;
  TORCH_CHECK_VALUE(rows <= kMostPlaces / length, "a KvCache of ", rows, " rows of ", length,
                    " tokens is larger than any memory; rows times tokens may be at most 2^40");
  bool packed = true;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto attention = std::dynamic_pointer_cast<AttentionLayerImpl>(module)) {
      packed &= dynamic_cast<PackedImpl<AttentionLayerImpl>*>(module.get()) != nullptr;
      layers_.push_back(std::move(attention));
    } else if (auto embedding = std::dynamic_pointer_cast<TokenEmbeddingImpl>(module)) {
      packed &= dynamic_cast<PackedImpl<TokenEmbeddingImpl>*>(module.get()) != nullptr;
      embeddings_.push_back(std::move(embedding));
    }
  }
  TORCH_CHECK_VALUE(embeddings_.size() == 1, "a KvCache is for a model of models/transformer.h, ",
                    "with one embedding; this one has ", embeddings_.size());
  TORCH_CHECK_VALUE(packed,
                    "a KvCache needs a model that takes two tensors: make it with packed(true), "
                    "under which all parameters have the same names, and load the weights");
  const TransformerOptions& options = embeddings_[0]->options();
  TORCH_CHECK_VALUE(!options.block().learned_positions() || length <= options.max_positions(),
                    "the model has ", options.max_positions(), " positions, got a KvCache of ",
                    length);
  TORCH_CHECK_VALUE(embeddings_[0]->cache_plan() == nullptr,
                    "the model has a KvCache already; several texts are rows of one");
  plan_->rows = rows;
  plan_->length = length;
  plan_->begins.assign(rows, -1);
  plan_->half.assign(rows, 0);
  tokens_.assign(rows, 0);
  before_.assign(rows, -1);
  for (const auto& layer : layers_) {
    caches_.push_back(std::make_shared<LayerCache>(plan_, layer->kind().window()));
    layer->use_cache(caches_.back());
  }
  embeddings_[0]->use_cache_plan(plan_);
}

KvCache::~KvCache() {
  for (const auto& layer : layers_) layer->use_cache(nullptr);
  for (const auto& embedding : embeddings_) embedding->use_cache_plan(nullptr);
}

std::vector<at::Tensor> KvCache::inputs(const at::Tensor& ids) {
  std::vector<int64_t> rows(tokens_.size());
  std::iota(rows.begin(), rows.end(), 0);
  return inputs(ids, rows);
}

std::vector<at::Tensor> KvCache::inputs(const at::Tensor& ids, const std::vector<int64_t>& rows) {
  const int64_t tokens = ids.defined() && ids.dim() == 2 ? ids.size(1) : 0;
  return inputs(ids, rows, std::vector<int64_t>(rows.size(), tokens));
}

std::vector<at::Tensor> KvCache::inputs(const at::Tensor& ids, const std::vector<int64_t>& rows,
                                        const std::vector<int64_t>& lengths) {
  TORCH_CHECK_VALUE(ids.defined() && ids.dim() == 2 && ids.size(1) > 0,
                    "a KvCache takes token ids of shape [rows, tokens], of a token or more, got ",
                    ids.defined() ? ids.sizes() : at::IntArrayRef());
  TORCH_CHECK_VALUE(ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt,
                    "token ids must be whole numbers of 64 or 32 bits, got ", ids.scalar_type());
  TORCH_CHECK_VALUE(ids.size(0) == static_cast<int64_t>(rows.size()), "there are token ids of ",
                    ids.size(0), " rows for ", rows.size(),
                    " rows of the KvCache; name those that they are for");
  const int64_t tokens = ids.size(1);
  TORCH_CHECK_VALUE(lengths.size() == rows.size(), "there are ", lengths.size(), " lengths for ",
                    rows.size(), " rows of token ids; give one for each");
  bool padded = false;
  for (const int64_t length : lengths) {
    TORCH_CHECK_VALUE(length > 0 && length <= tokens,
                      "the length of a row's text must be from 1 to ", tokens,
                      ", the tokens of a row of ids, got ", length);
    padded |= length < tokens;
  }
  std::vector<int64_t> begins(tokens_.size(), -1), ends(tokens_.size(), 0), half = plan_->half;
  int64_t seen = 0;
  for (const int64_t row : rows) {
    check_row(row);
    TORCH_CHECK_VALUE(begins[row] < 0, "row ", row,
                      " of the KvCache is named twice; name each row once");
    TORCH_CHECK_VALUE(tokens_[row] + tokens <= plan_->length, "row ", row,
                      " of the KvCache is full: it has ", tokens_[row], " of ", plan_->length,
                      " tokens, and gets ", tokens, " more; truncate() it, or make a longer one");
    begins[row] = tokens_[row];
    seen = std::max(seen, tokens_[row] + tokens);
  }
  std::vector<int64_t> firsts;
  for (size_t i = 0; i < rows.size(); ++i) {
    firsts.push_back(rows[i] * plan_->length + tokens_[rows[i]]);
    ends[rows[i]] = tokens_[rows[i]] + lengths[i];
    half[rows[i]] = 1 - half[rows[i]];
  }
  // These tensors are allocated before any count changes, because a device may have no memory left.
  const at::Tensor slots =
      (at::tensor(firsts, at::kLong).unsqueeze(1) + at::arange(tokens)).to(ids.device());
  const at::Tensor half_on_device =
      window() > 0 ? at::tensor(half, at::kLong).to(ids.device()) : at::Tensor();
  plan_->ends_on_device = padded ? at::tensor(ends, at::kLong).to(ids.device()) : at::Tensor();
  plan_->half_on_device = half_on_device;
  for (const int64_t row : rows) {
    before_[row] = tokens_[row];
    tokens_[row] = ends[row];
  }
  plan_->half = std::move(half);
  plan_->nothing_before = seen == tokens;
  plan_->tokens = tokens;
  plan_->seen = seen;
  plan_->begins = std::move(begins);
  plan_->ends = std::move(ends);
  return {ids, slots};
}

int64_t KvCache::tokens(int64_t row) const {
  check_row(row);
  return tokens_[row];
}

void KvCache::truncate(int64_t row, int64_t tokens) {
  check_row(row);
  TORCH_CHECK_VALUE(tokens >= 0 && tokens <= tokens_[row], "row ", row, " of the KvCache has ",
                    tokens_[row], " tokens, and cannot be cut to ", tokens, "; give 0 to ",
                    tokens_[row]);
  const bool undone = before_[row] >= 0 && tokens <= before_[row];
  const int64_t now = undone ? before_[row] : tokens_[row], kept = window() - 1;
  TORCH_CHECK_VALUE(
      kept < 0 || now <= kept || tokens == 0 || tokens == now, "row ", row, " of the KvCache has ",
      tokens_[row], " tokens, and layers with a window of ", kept + 1,
      " have forgotten what is before token ", tokens, "; cut it to 0 and give its text again",
      before_[row] > 0 ? ", or to " + std::to_string(before_[row]) + ", as before its last call"
                       : "");
  if (undone) plan_->half[row] = 1 - plan_->half[row];
  if (tokens < tokens_[row]) before_[row] = -1;
  for (const auto& cache : caches_) cache->clear(row, now, tokens);
  tokens_[row] = tokens;
}

int64_t KvCache::window() const {
  int64_t shortest = 0;
  for (const auto& cache : caches_) {
    if (!cache->keeps_window()) continue;
    shortest = shortest > 0 ? std::min(shortest, cache->window()) : cache->window();
  }
  return shortest;
}

int64_t KvCache::rows() const { return plan_->rows; }
int64_t KvCache::length() const { return plan_->length; }

int64_t KvCache::bytes() const {
  int64_t sum = 0;
  for (const auto& cache : caches_) sum += cache->bytes();
  return sum;
}

void KvCache::check_row(int64_t row) const {
  TORCH_CHECK_VALUE(row >= 0 && row < plan_->rows, "there is no row ", row, " in a KvCache of ",
                    plan_->rows, " rows; rows count from 0");
}

int64_t kv_cache_bytes(const TransformerOptions& options, int64_t rows, int64_t length,
                       at::ScalarType type) {
  int64_t places = 0;
  for (int64_t block = 0; block < options.num_layers(); ++block) {
    places += internal::kept_places(options.block().kind_of(block).window(), length);
  }
  return 2 * places * rows * options.kv_heads() * options.size_of_head() *
         static_cast<int64_t>(c10::elementSize(type));
}

}  // namespace gpipe::models
