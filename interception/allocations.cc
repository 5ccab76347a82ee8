#include "interception/allocations.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <array>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

namespace gpipe::internal {
namespace {

// The current scope, and its number. Only the scope that reported a block's beginning to an
// observer reports the block's end to it.
struct Current {
  std::shared_mutex mutex;  // exclusive: scopes begin and end; shared: observers are called
  AllocationObserver* observer = nullptr;
  uint64_t scope = 0;
};
Current& current() {
  static auto* const current_scope =
      // The scope is never destroyed, because blocks may be freed until the very end of the
      // process.
      new Current;
  return *current_scope;
}

struct Block {
  uint64_t id = 0;
  uint64_t scope = 0;
};

Block begin(c10::Device device, size_t bytes) {
  static std::atomic<uint64_t> last{0};
  Current& now = current();
  std::shared_lock<std::shared_mutex> lock(now.mutex);
  if (now.observer == nullptr) return {};
  const Block block{++last, now.scope};
  now.observer->on_allocate(block.id, device, static_cast<int64_t>(bytes));
  return block;
}

void end(const Block& block) {
  Current& now = current();
  std::shared_lock<std::shared_mutex> lock(now.mutex);
  if (now.observer != nullptr && now.scope == block.scope) now.observer->on_free(block.id);
}

// The blocks of memory whose beginning was reported, by address. LibTorch may take a block as a
// DataPtr and free it by its address alone, so the address must be enough to find the block.
class Blocks {
 public:
  void add(void* address, Block block) {
    Shard& shard = shard_of(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.blocks[address] = block;
  }
  // Returns an id of 0 for a block whose beginning was not seen.
  Block take(void* address) {
    Shard& shard = shard_of(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.blocks.find(address);
    if (found == shard.blocks.end()) return {};
    const Block block = found->second;
    shard.blocks.erase(found);
    return block;
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;
  };
  Shard& shard_of(void* address) {
    return shards_[(reinterpret_cast<uintptr_t>(address) >> 6) % shards_.size()];
  }
  std::array<Shard, 16> shards_;
};
Blocks& blocks() {
  static auto* const seen_blocks = new Blocks;
  return *seen_blocks;
}

// The deleter of the former allocator; null if that allocator does not free by address.
c10::DeleterFnPtr delete_cpu = nullptr;

void free_cpu(void* address) {
  const Block block = blocks().take(address);
  delete_cpu(address);
  if (block.id != 0) end(block);
}

// A block of an allocator that does not free by address.
struct Wrapped {
  c10::DataPtr data;
  Block block;
};

void free_wrapped(void* context) {
  auto* const wrapped = static_cast<Wrapped*>(context);
  const Block block = wrapped->block;
  delete wrapped;
  end(block);
}

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = base_->allocate(bytes);
    void* const address = data.get();
    if (address == nullptr) return data;
    const Block block = begin(c10::Device(c10::kCPU), bytes);
    if (block.id == 0) return data;
    if (delete_cpu != nullptr && data.get_context() == address &&
        data.compare_exchange_deleter(delete_cpu, &free_cpu)) {
      blocks().add(address, block);
      return data;
    }
    const c10::Device device = data.device();
    return {address, new Wrapped{std::move(data), block}, &free_wrapped, device};
  }
  // The deleter for blocks that are freed by address. It also frees blocks whose beginning was not
  // reported, in the former allocator's way.
  c10::DeleterFnPtr raw_deleter() const override {
    return delete_cpu == nullptr ? nullptr : &free_cpu;
  }
  void copy_data(void* target, const void* source, size_t count) const override {
    base_->copy_data(target, source, count);
  }

 private:
  c10::Allocator* base_;
};

void free_meta(void* context) {
  auto* const block = static_cast<Block*>(context);
  end(*block);
  delete block;
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    // The block belongs to the thread's current meta device. LibTorch's own allocator ignores the
    // current device, because it has only one.
    const c10::Device device = c10::impl::VirtualGuardImpl(c10::kMeta).getDevice();
    const Block block = begin(device, bytes);
    if (block.id == 0) return {nullptr, device};
    return {nullptr, new Block(block), &free_meta, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*target*/, const void* /*source*/, size_t /*count*/) const override {}
};

#if GPIPE_TORCH_HAS_CUDA
// From now on CUDA's allocator reports its blocks itself, until the process ends. It holds a lock
// while it reports, so code that is called here must not call it.
void watch_cuda() {
  static const bool watching = [] {
    namespace allocator = c10::cuda::CUDACachingAllocator;
    allocator::attachAllocatorTraceTracker([](const allocator::TraceEntry& entry) {
      static auto* const seen = new Blocks;
      auto* const address = reinterpret_cast<void*>(entry.addr_);  // NOLINT: a device's address
      if (entry.action_ == allocator::TraceEntry::ALLOC) {
        const Block block = begin(c10::Device(c10::kCUDA, entry.device_), entry.size_);
        if (block.id != 0) seen->add(address, block);
      } else if (entry.action_ == allocator::TraceEntry::FREE_REQUESTED) {
        const Block block = seen->take(address);
        if (block.id != 0) end(block);
      }
    });
    return true;
  }();
  (void)watching;
}
#else
void watch_cuda() {
  throw std::logic_error(
      "AllocationScope was asked for blocks on CUDA devices, but this LibTorch has no CUDA; leave "
      "`cuda` false");
}
#endif

// An observer that notes whether a block of its own thread is reported.
class Proof final : public AllocationObserver {
 public:
  explicit Proof(c10::DeviceType type) : type_(type) {}
  void on_allocate(uint64_t, c10::Device device, int64_t) override {
    if (std::this_thread::get_id() == thread_ && device.type() == type_) seen_ = true;
  }
  void on_free(uint64_t) override {}
  bool seen() const { return seen_; }

 private:
  const c10::DeviceType type_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool seen_ = false;  // only thread_ writes it
};

void observe(AllocationObserver* observer) {
  Current& now = current();
  std::unique_lock<std::shared_mutex> lock(now.mutex);
  if (observer != nullptr && now.observer != nullptr) {
    throw std::logic_error(
        "allocations are already being watched in this process; profile sizes, make memory "
        "plans and use StageMemory one after the other");
  }
  now.observer = observer;
  ++now.scope;
}

// Takes a block and throws if it is not reported, because then no count would be right.
void prove(c10::DeviceType type) {
  Proof proof(type);
  observe(&proof);
  try {
    c10::GetAllocator(type)->allocate(64);
  } catch (...) {
    observe(nullptr);
    throw;
  }
  observe(nullptr);
  if (proof.seen()) return;
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  throw std::logic_error(
      "memory on " + name +
      " cannot be counted: another allocator was put in front of the counting one and does not "
      "pass requests on to it (c10::SetAllocator with priority 255, or another CUDA allocator); "
      "put it there before the first profile, memory plan, StageMemory or "
      "gpipe::install_meta_devices of the process, or leave it out");
}

}  // namespace

void install_allocators() {
  static const bool installed = [] {
    c10::Allocator* const base = c10::GetCPUAllocator();
    delete_cpu = base->raw_deleter();
    // The highest priority there is, so that the new allocator replaces whichever allocator is
    // installed.
    constexpr uint8_t kPriority = 255;
    c10::SetCPUAllocator(new CpuAllocator(base), kPriority);
    c10::SetAllocator(c10::kMeta, new MetaAllocator, kPriority);
    return true;
  }();
  (void)installed;
}

AllocationScope::AllocationScope(AllocationObserver& observer, bool cuda) {
  install_allocators();
  if (cuda) watch_cuda();
  prove(c10::kCPU);
  prove(c10::kMeta);
  if (cuda) prove(c10::kCUDA);
  observe(&observer);
}

AllocationScope::~AllocationScope() { observe(nullptr); }

}  // namespace gpipe::internal
