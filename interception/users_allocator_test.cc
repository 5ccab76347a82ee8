// Tests users' allocators that do not free by address: one that is installed before the first
// scope, and one that is put in front of the counting allocator later.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "interception/allocations.h"

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

int64_t blocks_of_user = 0;

// An allocator that keeps a record in a header before each block. The context of the block is that
// header, and not its address.
class UsersAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t kHeader = 64;
    void* const header = std::aligned_alloc(kHeader, (bytes / kHeader + 2) * kHeader);
    ++blocks_of_user;
    return {static_cast<char*>(header) + kHeader, header,
            [](void* context) {
              --blocks_of_user;
              std::free(context);
            },
            c10::Device(c10::kCPU)};
  }
  void copy_data(void* target, const void* source, size_t count) const override {
    std::memcpy(target, source, count);
  }
};

class Sum final : public AllocationObserver {
 public:
  void on_allocate(uint64_t, c10::Device, int64_t bytes) override { ++taken, most += bytes; }
  void on_free(uint64_t) override { ++given_back; }
  int taken = 0, given_back = 0;
  int64_t most = 0;
};

// This is the only test of its process, because an allocator that is put in front stays there.
TEST(UsersAllocator, IsCountedOrItIsSaidThatItCannotBe) {
  static UsersAllocator first, later;
  c10::SetCPUAllocator(&first, /*priority=*/201);
  ASSERT_EQ(first.raw_deleter(), nullptr);
  {
    Sum sum;
    const AllocationScope scope(sum);
    const int64_t before = blocks_of_user;
    at::Tensor x = at::ones({1000}, at::kFloat);
    EXPECT_EQ(sum.most, 4000);
    x.resize_({2000});
    EXPECT_EQ(x.narrow(0, 0, 1000).sum().item<float>(), 1000);
    x.reset();
    EXPECT_EQ(sum.given_back, sum.taken);
    EXPECT_EQ(blocks_of_user, before);
  }
  c10::Allocator* const counting = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&later, /*priority=*/200);
  EXPECT_EQ(c10::GetCPUAllocator(), counting) << "the user's allocator has a lower priority";

  c10::SetCPUAllocator(&later, /*priority=*/255);
  Sum sum;
  EXPECT_THAT([&] { AllocationScope{sum}; },
              ThrowsMessage<std::logic_error>(HasSubstr("memory on cpu cannot be counted")));
  EXPECT_THAT([&] { AllocationScope{sum}; },
              ThrowsMessage<std::logic_error>(HasSubstr("cannot be counted")))
      << "the failed scope does not count as open";
  c10::SetCPUAllocator(counting, /*priority=*/255);
  EXPECT_NO_THROW(AllocationScope{sum});
  EXPECT_EQ(sum.taken, 0) << "the observer is not told of the proof's own block";
}

}  // namespace
}  // namespace gpipe::internal
