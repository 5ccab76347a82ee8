// LayerCache: the keys and values that an attention layer has computed, by row and place.
//
// A layer with a window keeps the keys and values of the window - 1 tokens before a call, and of
// the window - 1 tokens before the next call. So a call can be made once more, or be undone if it
// failed in some layer.
//
// Slots, (N, T), go beside the model's vectors, one for each token: row * length + place, where the
// row is one of the cache's and places count from the row's first token. So a layer knows the rows
// of its tokens, however rows are cut into micro-batches.
#ifndef MODELS_BLOCKS_LAYER_CACHE_H_
#define MODELS_BLOCKS_LAYER_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace gpipe::models::internal {

// The rows and places of a call. All layers of a model share one plan. The caller's thread changes
// it between calls, so that no layer has to wait for its device to learn a size.
struct CachePlan {
  int64_t rows = 0;
  int64_t length = 0;           // places of a row
  int64_t tokens = 0;           // of each row in this call
  int64_t seen = 0;             // the places up to the last one of any row
  bool nothing_before = false;  // all rows of the call were empty
  std::vector<int64_t> begins;  // [row] where its tokens of the call begin; -1: not in the call
  // [row] for rows of the call the place behind the last token. The row's slots from this place on
  // are padding.
  std::vector<int64_t> ends;
  at::Tensor ends_on_device;  // `ends`, if there is padding; otherwise undefined
  // [row] which half of a layer with a window gets what is kept after the row's last call: 0 or 1.
  // The other half has what was kept before it.
  std::vector<int64_t> half;
  at::Tensor half_on_device;  // `half`, for models with such layers; otherwise undefined

  // Throws c10::ValueError for slots of another call (on the CPU, where reading them costs
  // nothing), in training mode, and if gradients are enabled.
  void check(const at::Tensor& slots, bool training) const;
  at::Tensor places(const at::Tensor& slots) const;
  // The number of tokens of each row's text, including the tokens of the call: (N, 1).
  at::Tensor lengths(const at::Tensor& slots) const;
};

// Whether a layer with this window, 0 for none, keeps less than a row of `length` places.
bool keeps_window(int64_t window, int64_t length);
// How many places of a row such a layer keeps: twice the window - 1 places that a token sees before
// itself, or all.
int64_t kept_places(int64_t window, int64_t length);

// The keys and values that tokens may see, (N, kv_heads, S, D), and their places, (N or 1, S).
// Negative places are empty. All are undefined for a call before which there was nothing.
struct SeenKeys {
  at::Tensor keys, values, places;
};

// Thread-safety: one call at a time, as for an attention layer.
class LayerCache {
 public:
  // `window`: a token sees itself and the window - 1 before it; 0: all.
  LayerCache(std::shared_ptr<const CachePlan> plan, int64_t window)
      : plan_(std::move(plan)), window_(window) {}

  const CachePlan& plan() const { return *plan_; }
  bool keeps_window() const { return internal::keeps_window(window_, plan_->length); }
  int64_t window() const { return window_; }

  // Throws c10::ValueError if this layer has not computed all that these rows have before the call:
  // a call before it failed, or was not made. (On the CPU, as CachePlan::check().)
  void check_complete(const at::Tensor& slots) const;

  // Keeps keys and values (N, kv_heads, T, D) of the tokens in these slots, and returns them with
  // those before. The first call takes memory, on their device and of their type. For padding it
  // keeps zeros. Throws c10::ValueError for another type later.
  SeenKeys update(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots);
  // Empties a row that has `tokens` tokens from this place on: a weight of 0 does not hide a NaN
  // that was left there. A window must have kept all places before it that the next token sees.
  void clear(int64_t row, int64_t tokens, int64_t place);

  int64_t bytes() const;

 private:
  void allocate(const at::Tensor& keys, const at::Tensor& values);
  SeenKeys update_all(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots);
  SeenKeys update_window(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots);

  std::shared_ptr<const CachePlan> plan_;
  int64_t window_;
  // Without a window (rows, kv_heads, length, D). With a window (2 * rows, kv_heads, window - 1,
  // D): both halves one behind the other, in each the latest token last, and zeros if a row has
  // fewer tokens.
  at::Tensor keys_, values_;
  std::vector<int64_t> filled_;  // [row] how many places have been computed; empty: none of any row
};

}  // namespace gpipe::models::internal

#endif  // MODELS_BLOCKS_LAYER_CACHE_H_
