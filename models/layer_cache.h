// LayerCache: the keys and values that an attention layer has computed, by row and place.
//
// Slots, (N, T), go beside the model's vectors, one for each token: row * length + place, where the
// row is one of the cache's and places count from the row's first token. So a layer knows the rows
// of its tokens, however rows are cut into micro-batches.
#ifndef MODELS_LAYER_CACHE_H_
#define MODELS_LAYER_CACHE_H_

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
  int64_t tokens = 0;           // new ones of each row
  int64_t seen = 0;             // the places up to the last one of any row
  bool nothing_before = false;  // all rows of the call were empty
  std::vector<int64_t> begins;  // [row] the place of its first token; -1: it is not in the call
  // [row] the place behind its last token, for rows of the call; the row's slots from there on are
  // padding.
  std::vector<int64_t> ends;
  at::Tensor ends_on_device;  // `ends`, if there is padding; otherwise undefined

  // Throws c10::ValueError for slots of another call (on the CPU, where reading them costs
  // nothing), in training mode, and if gradients are enabled.
  void check(const at::Tensor& slots, bool training) const;
  at::Tensor places(const at::Tensor& slots) const;
  // The number of tokens of each of these rows' texts, with those of the call: (N, 1).
  at::Tensor lengths(const at::Tensor& slots) const;
};

// Thread-safety: one call at a time, as for an attention layer.
class LayerCache {
 public:
  explicit LayerCache(std::shared_ptr<const CachePlan> plan) : plan_(std::move(plan)) {}

  const CachePlan& plan() const { return *plan_; }

  // Throws c10::ValueError if this layer has not computed all that these rows have before the call:
  // a call before it failed, or was not made. (On the CPU, as CachePlan::check().)
  void check_complete(const at::Tensor& slots) const;

  // Keeps keys and values (N, kv_heads, T, D) of the tokens in these slots. The first call takes
  // memory, on their device and of their type. For padding it keeps zeros. Throws c10::ValueError
  // for another type later.
  void put(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots);
  // The keys and values of these rows in the plan's places, each (N, kv_heads, seen, D); 0 in empty
  // places.
  std::pair<at::Tensor, at::Tensor> get(const at::Tensor& slots) const;
  // Empties the row from this place on: a weight of 0 does not hide a NaN that was left there.
  void clear(int64_t row, int64_t place);

  int64_t bytes() const;

 private:
  std::shared_ptr<const CachePlan> plan_;
  at::Tensor keys_, values_;     // (rows, kv_heads, length, D)
  std::vector<int64_t> filled_;  // [row] how many places have been computed; empty: none of any row
};

}  // namespace gpipe::models::internal

#endif  // MODELS_LAYER_CACHE_H_
