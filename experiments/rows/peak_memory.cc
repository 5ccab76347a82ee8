#include "experiments/rows/peak_memory.h"

#include <ATen/Context.h>

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "interception/allocations.h"

namespace gpipe::experiments {
namespace {

#if GPIPE_TORCH_HAS_CUDA
namespace cuda = c10::cuda::CUDACachingAllocator;

void begin_cuda() { at::globalContext().lazyInitDevice(c10::kCUDA); }

void reset_cuda(c10::Device device) {
  cuda::emptyCache();
  cuda::resetPeakStats(device.index());
}

int64_t peak_of_cuda(c10::Device device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return cuda::getDeviceStats(device.index()).reserved_bytes[kAll].peak;
}
#else
// Without CUDA in LibTorch no program can have a CUDA device.
void begin_cuda() { throw std::invalid_argument("this LibTorch has no CUDA"); }
void reset_cuda(c10::Device /*device*/) {}
int64_t peak_of_cuda(c10::Device /*device*/) { return 0; }
#endif

}  // namespace

class PeakMemory::CpuMemory : public internal::AllocationObserver {
 public:
  CpuMemory() : scope_(*this) {}

  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override {
    if (!device.is_cpu()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[id] = bytes;
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  void on_free(uint64_t id) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(id);
    if (block == blocks_.end()) return;
    held_ -= block->second;
    blocks_.erase(block);
  }

  void reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    peak_ = held_;
  }
  int64_t peak() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peak_;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, int64_t> blocks_;
  int64_t held_ = 0;
  int64_t peak_ = 0;
  internal::AllocationScope scope_;  // the last member: ends before the others, which it updates
};

PeakMemory::PeakMemory(const std::vector<c10::Device>& devices) {
  bool has_cuda = false;
  for (c10::Device device : devices) {
    if (device.is_cuda() && !device.has_index()) device.set_index(0);
    if (!device.is_cpu() && !device.is_cuda()) {
      throw std::invalid_argument("memory is counted on the CPU and on CUDA devices, not on " +
                                  device.str());
    }
    has_cuda = has_cuda || device.is_cuda();
    if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
      devices_.push_back(device);
    }
  }
  if (has_cuda) begin_cuda();
  const auto is_cpu = [](c10::Device device) { return device.is_cpu(); };
  if (std::any_of(devices_.begin(), devices_.end(), is_cpu)) cpu_ = std::make_unique<CpuMemory>();
  reset();
}

PeakMemory::~PeakMemory() = default;

void PeakMemory::reset() {
  for (const c10::Device device : devices_) {
    device.is_cpu() ? cpu_->reset() : reset_cuda(device);
  }
}

std::vector<DevicePeak> PeakMemory::peaks() const {
  std::vector<DevicePeak> peaks;
  for (const c10::Device device : devices_) {
    peaks.push_back({device, device.is_cpu() ? cpu_->peak() : peak_of_cuda(device)});
  }
  return peaks;
}

}  // namespace gpipe::experiments
