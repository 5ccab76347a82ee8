#include "interception/peak_memory.h"

#include <ATen/Context.h>

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "interception/allocations.h"

namespace gpipe::internal {
namespace {

#if GPIPE_TORCH_HAS_CUDA
namespace allocator = c10::cuda::CUDACachingAllocator;

void begin_cuda() { at::globalContext().lazyInitDevice(c10::kCUDA); }
void empty_cuda_cache() { allocator::emptyCache(); }
void reset_cuda(c10::Device device) { allocator::resetPeakStats(device.index()); }

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
int64_t allocated_of_cuda(c10::Device device) {
  return allocator::getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}
int64_t reserved_of_cuda(c10::Device device) {
  return allocator::getDeviceStats(device.index()).reserved_bytes[kAll].peak;
}
#else
// Without CUDA in LibTorch no program can have a CUDA device.
void begin_cuda() { throw std::invalid_argument("this LibTorch has no CUDA"); }
void empty_cuda_cache() {}
void reset_cuda(c10::Device /*device*/) {}
int64_t allocated_of_cuda(c10::Device /*device*/) { return 0; }
int64_t reserved_of_cuda(c10::Device /*device*/) { return 0; }
#endif

bool has(const std::vector<c10::Device>& devices, c10::DeviceType type) {
  return std::any_of(devices.begin(), devices.end(),
                     [type](c10::Device device) { return device.type() == type; });
}

}  // namespace

// The blocks of the CPU and of the parts.
class PeakMemory::Blocks : public AllocationObserver {
 public:
  Blocks(int64_t parts, PartOf part_of, bool cuda)
      : part_of_(std::move(part_of)), parts_(static_cast<size_t>(parts)), scope_(*this, cuda) {}

  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override {
    const Block block{part_of_ ? part_of_(device) : kNoPart, device.is_cpu(), bytes};
    if (block.part == kNoPart && !block.on_cpu) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[id] = block;
    add(block, bytes);
  }
  void on_free(uint64_t id) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(id);
    if (block == blocks_.end()) return;
    add(block->second, -block->second.bytes);
    blocks_.erase(block);
  }

  void reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Sum& part : parts_) part.peak = part.held;
    cpu_.peak = cpu_.held;
  }
  int64_t of_cpu() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cpu_.peak;
  }
  int64_t of_part(int64_t part) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return parts_[static_cast<size_t>(part)].peak;
  }

 private:
  struct Block {
    int64_t part;
    bool on_cpu;
    int64_t bytes;
  };
  struct Sum {
    void add(int64_t bytes) {
      held += bytes;
      peak = std::max(peak, held);
    }
    int64_t held = 0;
    int64_t peak = 0;
  };

  void add(const Block& block, int64_t bytes) {
    if (block.part != kNoPart) parts_[static_cast<size_t>(block.part)].add(bytes);
    if (block.on_cpu) cpu_.add(bytes);
  }

  const PartOf part_of_;
  mutable std::mutex mutex_;
  std::vector<Sum> parts_;
  Sum cpu_;
  std::unordered_map<uint64_t, Block> blocks_;
  AllocationScope scope_;  // the last member, so that it ends before the others, which it updates
};

PeakMemory::PeakMemory(const std::vector<c10::Device>& devices, int64_t parts, PartOf part_of) {
  for (c10::Device device : devices) {
    if (device.is_cuda() && !device.has_index()) device.set_index(0);
    if (!device.is_cpu() && !device.is_cuda()) {
      throw std::invalid_argument("memory is counted on the CPU and on CUDA devices, not on " +
                                  device.str());
    }
    if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
      devices_.push_back(device);
    }
  }
  const bool has_cuda = has(devices_, c10::kCUDA);
  if (has_cuda) begin_cuda();
  if (parts > 0 || has(devices_, c10::kCPU)) {
    blocks_ = std::make_unique<Blocks>(parts, std::move(part_of), parts > 0 && has_cuda);
  }
  reset();
}

PeakMemory::~PeakMemory() = default;

void PeakMemory::reset(bool gives_back) {
  if (gives_back && has(devices_, c10::kCUDA)) empty_cuda_cache();
  if (blocks_ != nullptr) blocks_->reset();
  for (const c10::Device device : devices_) {
    if (device.is_cuda()) reset_cuda(device);
  }
}

int64_t PeakMemory::allocated(c10::Device device) const {
  return device.is_cpu() ? blocks_->of_cpu() : allocated_of_cuda(device);
}

std::optional<int64_t> PeakMemory::reserved(c10::Device device) const {
  return device.is_cpu() ? std::nullopt : std::make_optional(reserved_of_cuda(device));
}

std::vector<int64_t> PeakMemory::held() const {
  std::vector<int64_t> bytes;
  for (const c10::Device device : devices_) {
    bytes.push_back(device.is_cpu() ? allocated(device) : reserved_of_cuda(device));
  }
  return bytes;
}

int64_t PeakMemory::of_part(int64_t part) const { return blocks_->of_part(part); }

}  // namespace gpipe::internal
