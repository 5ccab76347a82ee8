#include "gpipe/stage_memory.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "gpipe/internal/threads/stage_work.h"
#include "interception/allocations.h"

namespace gpipe {
namespace {

#if GPIPE_TORCH_HAS_CUDA
namespace allocator = c10::cuda::CUDACachingAllocator;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

void reset_cuda(c10::Device device) { allocator::resetPeakStats(device.index()); }

DevicePeak peak_of_cuda(c10::Device device) {
  const auto stats = allocator::getDeviceStats(device.index());
  return {device, stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].peak};
}
#else
// Stubs for a LibTorch without CUDA, where no pipeline has CUDA devices.
void reset_cuda(c10::Device /*device*/) {}
DevicePeak peak_of_cuda(c10::Device device) { return {device, 0, std::nullopt}; }
#endif

}  // namespace

class StageMemory::Counter : public internal::AllocationObserver {
 public:
  struct Stage {
    c10::Device device;
    int64_t held = 0;
    int64_t peak = 0;
  };

  Counter(const void* pipeline, std::vector<Stage> stages, bool cuda)
      : pipeline_(pipeline), stages_(std::move(stages)), scope_(*this, cuda) {}

  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override {
    const internal::StageWork* const work = internal::StageWork::current();
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool ours = work != nullptr && work->id().pipeline == pipeline_;
    const int64_t stage = ours ? owner(work->id().stage, device) : kNone;
    if (stage == kNone && !device.is_cpu()) return;
    blocks_[id] = {stage, device.is_cpu(), bytes};
    if (stage != kNone) {
      stages_[stage].held += bytes;
      stages_[stage].peak = std::max(stages_[stage].peak, stages_[stage].held);
    }
    if (device.is_cpu()) {
      cpu_held_ += bytes;
      cpu_peak_ = std::max(cpu_peak_, cpu_held_);
    }
  }

  void on_free(uint64_t id) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(id);
    if (block == blocks_.end()) return;
    if (block->second.stage != kNone) stages_[block->second.stage].held -= block->second.bytes;
    if (block->second.on_cpu) cpu_held_ -= block->second.bytes;
    blocks_.erase(block);
  }

  void reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Stage& stage : stages_) stage.peak = stage.held;
    cpu_peak_ = cpu_held_;
  }

  int64_t peak(int64_t stage) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stages_[stage].peak;
  }
  int64_t cpu_peak() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cpu_peak_;
  }

 private:
  static constexpr int64_t kNone = -1;

  // The stage that a block on `device` belongs to if an action of stage `taker` takes the block.
  // kNone if it belongs to the device only.
  int64_t owner(int64_t taker, c10::Device device) const {
    if (stages_[taker].device == device) return taker;
    int64_t only = kNone;
    for (size_t j = 0; j < stages_.size(); ++j) {
      if (stages_[j].device != device) continue;
      if (only != kNone) return kNone;
      only = static_cast<int64_t>(j);
    }
    return only;
  }

  struct Block {
    int64_t stage;
    bool on_cpu;
    int64_t bytes;
  };
  const void* const pipeline_;
  mutable std::mutex mutex_;
  std::vector<Stage> stages_;
  std::unordered_map<uint64_t, Block> blocks_;
  int64_t cpu_held_ = 0;
  int64_t cpu_peak_ = 0;
  internal::AllocationScope scope_;  // the last member, so that it ends before those it reports to
};

StageMemory::StageMemory(const GPipe& pipe) : pipe_(pipe) {
  std::vector<Counter::Stage> stages;
  bool cuda = false;
  for (size_t j = 0; j < pipe->devices().size(); ++j) {
    const c10::Device device = pipe->devices()[j];
    TORCH_CHECK_VALUE(device.is_cpu() || device.is_cuda(),
                      "StageMemory counts memory on the CPU and on CUDA devices, but stage ", j,
                      " is on ", device, "; put it there, or do without StageMemory");
    cuda = cuda || device.is_cuda();
    stages.push_back({device});
    if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
      devices_.push_back(device);
    }
  }
  counter_ = std::make_unique<Counter>(pipe->pipeline(), std::move(stages), cuda);
  reset();
}

StageMemory::~StageMemory() = default;

void StageMemory::reset() {
  counter_->reset();
  for (const c10::Device device : devices_) {
    if (device.is_cuda()) reset_cuda(device);
  }
}

std::vector<StagePeak> StageMemory::stages() const {
  std::vector<StagePeak> peaks;
  std::set<const c10::StorageImpl*> known;  // a tied weight counts in its first stage
  int64_t layer = 0;
  for (size_t j = 0; j < pipe_->devices().size(); ++j) {
    StagePeak peak{static_cast<int64_t>(j), pipe_->devices()[j]};
    peak.taken = counter_->peak(peak.stage);
    const auto add = [&](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) {
        if (!tensor.defined() || !tensor.has_storage()) continue;
        const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
        if (known.insert(storage).second) peak.model += static_cast<int64_t>(storage->nbytes());
      }
    };
    for (int64_t k = 0; k < pipe_->balance()[j]; ++k, ++layer) {
      add((*pipe_)[layer]->parameters());
      add((*pipe_)[layer]->buffers());
    }
    peaks.push_back(peak);
  }
  return peaks;
}

std::vector<DevicePeak> StageMemory::devices() const {
  std::vector<DevicePeak> peaks;
  for (const c10::Device device : devices_) {
    peaks.push_back(device.is_cpu() ? DevicePeak{device, counter_->cpu_peak(), std::nullopt}
                                    : peak_of_cuda(device));
  }
  return peaks;
}

}  // namespace gpipe
