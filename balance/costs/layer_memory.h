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

// A LayerMemory needs no model: its caller says which layer runs, and it observes blocks of memory.
//
// The order of the calls: begin_forward and end_forward of layer 0, of layer 1, ..., then
// begin_backward and end_backward from the last layer to layer 0. Memory that is taken between the
// end of the last forward and the begin of the last layer's backward belongs to the loss. Only
// blocks on `device` count, and only those of the thread that made the latest of these calls.
//
// In a split backward these backward calls are for the gradients of inputs. begin_weights and
// end_weights follow, from the last layer to layer 0.
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

  // [layer] Bytes that its forward took and that were still in use when the backwards began.
  const std::vector<int64_t>& kept() const { return kept_; }
  // [layer] The larger of two peaks: the most that its forward held beside the kept bytes; and the
  // most that was in use during its backward of the memory taken since the forwards ended, mostly
  // gradients.
  const std::vector<int64_t>& workspace() const { return workspace_; }

  // [layer] Bytes that were in use before the first begin_weights and that the layer's weight half
  // freed.
  const std::vector<int64_t>& waiting() const { return waiting_; }

  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override;
  void on_free(uint64_t id) override;

 private:
  struct Block {
    int64_t layer;  // the layer whose forward took it; -1: taken since the forwards ended
    int64_t bytes;
    bool late;  // taken since the weight halves began
  };

  void note_backward();

  const int64_t layers_;
  const c10::Device device_;
  std::mutex mutex_;  // guards all members below
  bool forwards_ended_ = false;
  int64_t running_ = -1;  // the layer that runs; -1: none
  bool weights_began_ = false;
  int64_t weights_ = -1;  // the layer whose weight half runs; -1: none
  std::thread::id thread_;
  std::unordered_map<uint64_t, Block> blocks_;
  std::vector<int64_t> live_;  // [layer] live bytes of blocks that its forward took
  std::vector<int64_t> most_;  // [layer] the most live bytes during its forward
  int64_t later_ = 0;          // live bytes of blocks taken since the forwards ended
  std::vector<int64_t> kept_;
  std::vector<int64_t> workspace_;
  std::vector<int64_t> waiting_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_LAYER_MEMORY_H_
