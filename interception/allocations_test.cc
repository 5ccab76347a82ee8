#include "interception/allocations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace gpipe::internal {
namespace {

class Ledger : public AllocationObserver {
 public:
  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex);
    ++taken;
    (device.is_cpu() ? cpu : meta) += bytes;
    sizes.insert({id, {device, bytes}});
  }
  void on_free(uint64_t id) override {
    std::lock_guard<std::mutex> lock(mutex);
    const auto [device, bytes] = sizes.at(id);
    sizes.erase(id);
    (device.is_cpu() ? cpu : meta) -= bytes;
  }

  std::mutex mutex;
  std::map<uint64_t, std::pair<c10::Device, int64_t>> sizes;
  int64_t cpu = 0;
  int64_t meta = 0;
  int taken = 0;
};

TEST(AllocationScope, CountsWhatTensorsHold) {
  Ledger ledger;
  const AllocationScope scope(ledger);
  at::Tensor a = at::empty({1000}, at::kFloat);
  at::Tensor b = at::empty({1 << 20, 1 << 20}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(ledger.cpu, 4000);
  EXPECT_EQ(ledger.meta, int64_t{4} << 40);
  const at::Tensor view = a.slice(0, 0, 10);
  a.reset();
  EXPECT_EQ(ledger.cpu, 4000) << "the view keeps the whole block";
  b.reset();
  EXPECT_EQ(ledger.meta, 0);
}

TEST(AllocationScope, WorksWithValues) {
  Ledger ledger;
  const AllocationScope scope(ledger);
  at::Tensor a = at::ones({64}, at::kFloat);
  a.resize_({1000});
  a.fill_(2);
  EXPECT_EQ(a.sum().item<float>(), 2000);
  EXPECT_GE(ledger.cpu, 4000);
}

TEST(AllocationScope, BlocksOutliveTheScopeAndItsObserver) {
  at::Tensor cpu, meta, earlier = at::ones({100});
  {
    Ledger ledger;
    const AllocationScope scope(ledger);
    cpu = at::ones({100}, at::kFloat);
    meta = at::empty({100}, at::TensorOptions().device(at::kMeta));
    earlier.reset();
    EXPECT_EQ(ledger.taken, 2);
    EXPECT_EQ(ledger.cpu, 400) << "a block that was taken before is not reported";
  }
  Ledger ledger;
  const AllocationScope scope(ledger);
  cpu.reset();
  meta.reset();
  EXPECT_EQ(ledger.taken, 0);
  EXPECT_EQ(ledger.cpu, 0) << "nor that it was freed";
}

TEST(AllocationScope, BlocksGivenBackByAddress) {
  Ledger ledger;
  const AllocationScope scope(ledger);
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  void* const block = allocator->raw_allocate(256);
  EXPECT_EQ(ledger.cpu, 256);
  allocator->raw_deallocate(block);
  EXPECT_EQ(ledger.cpu, 0);
}

TEST(AllocationScope, OnlyOneAtATime) {
  Ledger first, second;
  std::optional<AllocationScope> scope(std::in_place, first);
  EXPECT_THROW(AllocationScope{second}, std::logic_error);
  const at::Tensor a = at::ones({10}, at::kFloat);
  EXPECT_EQ(first.cpu, 40);
  scope.reset();
  const AllocationScope next(second);
}

TEST(AllocationScope, SeesAllThreads) {
  Ledger ledger;
  std::vector<at::Tensor> tensors(8);
  {
    const AllocationScope scope(ledger);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int k = 0; k < 1000; ++k) tensors[t] = at::empty({100}, at::kFloat);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ledger.taken, 8000);
    EXPECT_EQ(ledger.cpu, 8 * 400);
  }
}

}  // namespace
}  // namespace gpipe::internal
