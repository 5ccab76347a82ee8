#include "balance/costs/layer_memory.h"

#include <algorithm>

namespace gpipe::balance {
namespace {

// "meta" and "meta:0" are the same device.
bool same_device(c10::Device a, c10::Device b) {
  return a.type() == b.type() && (a.index() == b.index() || !a.has_index() || !b.has_index());
}

}  // namespace

LayerMemory::LayerMemory(int64_t layers, c10::Device device)
    : layers_(layers),
      device_(device),
      live_(layers),
      most_(layers),
      kept_(layers),
      workspace_(layers),
      waiting_(layers) {}

void LayerMemory::begin_forward(int64_t layer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  thread_ = std::this_thread::get_id();
  running_ = layer;
}

void LayerMemory::end_forward(int64_t layer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = -1;
  if (layer + 1 == layers_) forwards_ended_ = true;
}

void LayerMemory::begin_backward(int64_t layer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  thread_ = std::this_thread::get_id();
  if (layer + 1 == layers_) {
    kept_ = live_;
    for (int64_t k = 0; k < layers_; ++k) workspace_[k] = most_[k] - kept_[k];
  }
  running_ = layer;
  note_backward();
}

void LayerMemory::end_backward(int64_t) {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = -1;
}

void LayerMemory::begin_weights(int64_t layer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  thread_ = std::this_thread::get_id();
  weights_began_ = true;
  weights_ = layer;
}

void LayerMemory::end_weights(int64_t) {
  const std::lock_guard<std::mutex> lock(mutex_);
  weights_ = -1;
}

void LayerMemory::note_backward() { workspace_[running_] = std::max(workspace_[running_], later_); }

void LayerMemory::on_allocate(uint64_t id, c10::Device device, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!same_device(device, device_) || std::this_thread::get_id() != thread_) return;
  if (forwards_ended_) {
    blocks_.emplace(id, Block{-1, bytes, weights_began_});
    later_ += bytes;
    if (running_ >= 0) note_backward();
  } else if (running_ >= 0) {
    blocks_.emplace(id, Block{running_, bytes, false});
    live_[running_] += bytes;
    most_[running_] = std::max(most_[running_], live_[running_]);
  }
}

void LayerMemory::on_free(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return;
  const Block block = found->second;
  blocks_.erase(found);
  (block.layer < 0 ? later_ : live_[block.layer]) -= block.bytes;
  if (weights_ >= 0 && !block.late) waiting_[weights_] += block.bytes;
}

}  // namespace gpipe::balance
