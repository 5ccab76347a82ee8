// KvCache: keeps the keys and values of the tokens that a language model has seen, so that each
// further token is computed alone.
#ifndef MODELS_KV_CACHE_H_
#define MODELS_KV_CACHE_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "models/transformer_options.h"

namespace gpipe::models {

namespace internal {
class AttentionLayerImpl;
class LayerCache;
class TokenEmbeddingImpl;
struct CachePlan;
}  // namespace internal

// The cache of a model of models/transformer.h, as a whole or as a pipeline. While it lives, the
// model takes inputs(ids) instead of token ids and documents, and gives the logits of these tokens
// alone: first those of a prompt, then one token after the other. A row is a text of its own.
// Logits are those of a whole forward up to rounding, because products of few rows are summed in
// another order; the logits of a prompt in empty rows have the same bits. If angles depend on the
// length of a text (RotaryOptions::depends_on_length), this holds only until the text grows beyond
// original_positions, or if its prompt was already longer (LongRoPE): deeper layers keep what they
// computed when the text was shorter.
//
// Each attention layer keeps what it computes, on its own device: a pipeline sends no more than in
// training, and micro-batches are told apart by the rows that inputs() names. A layer with a window
// of W keeps 2 * (W - 1) places of a row, or all, whichever is less: what the tokens of the last
// call saw, and what the next one will see.
//
// Requirements: the model is made with packed(true), is in evaluation mode and called without
// gradients. A model has one cache at a time; several texts are rows of one cache. With several
// processes, each has a KvCache and makes the same calls of inputs(); its cache keeps what its own
// layers compute.
//
// Guarantees: after its destruction nothing of it is left in the model. Nothing of it is saved.
//
// Thread-safety: none. No function may be called while the model runs.
//
// Throws c10::ValueError for a model that is not of this kind, or has a cache. The model throws it
// when it is called in training mode, with gradients, or with anything but the last inputs().
// (Other values are noticed only on the CPU, where reading them costs nothing.)
//
// Example:
//   gpipe::models::KvCache cache(*pipe, /*rows=*/4, /*length=*/256);
//   torch::Tensor logits = pipe->forward(cache.inputs(prompts))[0];  // (4, tokens, vocab_size)
//   logits = pipe->forward(cache.inputs(next))[0];                   // next: (4, 1)
class KvCache {
 public:
  // Makes a cache for `rows` texts of at most `length` tokens; with learned positions `length` is
  // at most max_positions.
  KvCache(torch::nn::Module& model, int64_t rows, int64_t length);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // The model's inputs for further tokens: ids (rows, tokens) of all rows, or of the given rows,
  // which may have any order and different lengths. The tokens then belong to the rows. Throws
  // c10::ValueError if the number of rows differs from that of ids, or if a row is named twice or
  // has no room.
  std::vector<at::Tensor> inputs(const at::Tensor& ids);
  std::vector<at::Tensor> inputs(const at::Tensor& ids, const std::vector<int64_t>& rows);
  // The same for texts of different lengths: the first lengths[i] tokens in row i of ids belong to
  // the text, and what follows them is padding, any token ids. Padding is forgotten, and its logits
  // mean nothing: those of a text's last token are in place lengths[i] - 1. All tokens of ids need
  // room. Throws c10::ValueError also unless there is one length for each row, from 1 to
  // ids.size(1).
  std::vector<at::Tensor> inputs(const at::Tensor& ids, const std::vector<int64_t>& rows,
                                 const std::vector<int64_t>& lengths);

  // How many tokens a row has. Throws c10::ValueError for a row that does not exist.
  int64_t tokens(int64_t row) const;
  // Keeps only the first `tokens` tokens of a row: to begin anew (0), to continue from an earlier
  // place, and after a call that failed or was not made, whose tokens are not there. (Without it,
  // the next call throws, on the CPU.) Throws c10::ValueError for more tokens than the row has; and
  // if a layer has forgotten what a window before this place shows: 0 is always possible, and once
  // after each call the number before it.
  void truncate(int64_t row, int64_t tokens);

  int64_t rows() const;
  int64_t length() const;
  // The bytes that the layers of this process hold: 0 before the first call.
  int64_t bytes() const;

 private:
  void check_row(int64_t row) const;
  // The shortest window of the layers that keep no more than a window; 0 if there is no such layer.
  int64_t window() const;

  std::shared_ptr<internal::CachePlan> plan_;
  std::vector<int64_t> tokens_;  // [row] how many tokens it has
  std::vector<int64_t> before_;  // [row] tokens_ before the row's last call; -1: undone
  // The model's layers. The destructor takes the cache away from them.
  std::vector<std::shared_ptr<internal::AttentionLayerImpl>> layers_;
  std::vector<std::shared_ptr<internal::TokenEmbeddingImpl>> embeddings_;
  std::vector<std::shared_ptr<internal::LayerCache>> caches_;  // [attention layer]
};

// The bytes of a cache of all layers: 2 * rows * kv_heads * size_of_head numbers for each place
// that a layer keeps (`length` without a window). A stage has the part of its layers.
int64_t kv_cache_bytes(const TransformerOptions& options, int64_t rows, int64_t length,
                       at::ScalarType type = at::kFloat);

}  // namespace gpipe::models

#endif  // MODELS_KV_CACHE_H_
