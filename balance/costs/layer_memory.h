// LayerMemory: counts, for each layer of a model that runs, the bytes that it keeps and needs.
#ifndef BALANCE_COSTS_LAYER_MEMORY_H_
#define BALANCE_COSTS_LAYER_MEMORY_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "interception/allocations.h"

namespace gpipe::balance {

// Knows no model: it is told which layer runs, and sees blocks of memory come and go.
//
// The calls come in this order: begin_forward and end_forward of layer 0, of layer 1, ..., then
// begin_backward and end_backward from the last layer to layer 0. What is taken between the end of
// the last forward and the begin of the last backward belongs to the loss. Only blocks on `device`
// count, and only those of the thread that made the latest of these calls.
//
// Of a split backward these are the halves of inputs; begin_weights and end_weights follow, from
// the last layer to layer 0.
//
// Thread-safety: thread-safe as an AllocationObserver; the results may be read after the run.
class LayerMemory : public internal::AllocationObserver {
 public:
  LayerMemory(int64_t layers, c10::Device device);

  void begin_forward(int64_t layer);
  void end_forward(int64_t layer);
  void begin_backward(int64_t layer);
  void end_backward(int64_t layer);
  void begin_weights(int64_t layer);
  void end_weights(int64_t layer);

  // [layer] Bytes taken in its forward that were still in use when the backwards began.
  const std::vector<int64_t>& kept() const { return kept_; }
  // [layer] The larger of two: the most that its forward held beside what is kept; and the most
  // that was held in its backward of what was taken since the forwards ended, which is mostly
  // gradients.
  const std::vector<int64_t>& workspace() const { return workspace_; }

  // [layer] Bytes that were in use before the first begin_weights and that the layer's half gave
  // back.
  const std::vector<int64_t>& waiting() const { return waiting_; }

  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override;
  void on_free(uint64_t id) override;

 private:
  struct Block {
    int64_t layer;  // that took it in its forward; -1: taken since the forwards ended
    int64_t bytes;
    bool late;  // taken since the halves of weights began
  };

  void note_backward();

  const int64_t layers_;
  const c10::Device device_;
  std::mutex mutex_;  // guards all that follows
  bool forwards_ended_ = false;
  int64_t running_ = -1;  // the layer; -1: none
  bool weights_began_ = false;
  int64_t weights_ = -1;  // the layer whose half of weights runs; -1: none
  std::thread::id thread_;
  std::unordered_map<uint64_t, Block> blocks_;
  std::vector<int64_t> live_;  // [layer] of blocks that its forward took
  std::vector<int64_t> most_;  // [layer] the most of that in its forward
  int64_t later_ = 0;          // bytes in use, taken since the forwards ended
  std::vector<int64_t> kept_;
  std::vector<int64_t> workspace_;
  std::vector<int64_t> waiting_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_LAYER_MEMORY_H_
