#include "gpipe/testing/live_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <utility>

namespace gpipe::testing {
namespace {

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};

struct Block {
  c10::DataPtr data;
  int64_t bytes;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  live -= block->bytes;
  delete block;
}

class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t n) override {
    auto* block = new Block{base_->allocate(n), static_cast<int64_t>(n)};
    const int64_t now = live += block->bytes;
    int64_t most = peak.load();
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
    return {block->data.get(), block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t count) const override {
    default_copy_data(target, source, count);
  }

 private:
  c10::Allocator* base_;
};

}  // namespace

void count_live_memory() {
  static CountingAllocator* const allocator = [] {
    auto* counting = new CountingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(counting, /*priority=*/100);
    return counting;
  }();
  (void)allocator;
}

int64_t live_bytes() { return live.load(); }
int64_t peak_bytes() { return peak.load(); }
void reset_peak_bytes() { peak = live.load(); }

}  // namespace gpipe::testing
