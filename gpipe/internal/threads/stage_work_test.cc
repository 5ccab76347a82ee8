#include "gpipe/internal/threads/stage_work.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <thread>

#include "gpipe/testing/device.h"

namespace gpipe::internal {
namespace {

// Returns the current StageWork on a thread that starts as autograd's engine starts its threads for
// a node: with the state of the caller.
StageWork* on_a_thread_of_autograd() {
  StageWork* seen = nullptr;
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    seen = StageWork::current();
  }).join();
  return seen;
}

TEST(StageWork, AThreadWorksForTheStageWhoseActionItBeganLast) {
  StageWork first(StageId{}), second(StageId{});
  EXPECT_EQ(StageWork::current(), nullptr);
  {
    const StageWorkScope scope(/*on_autograd_threads=*/true);
    EXPECT_EQ(StageWork::current(), nullptr);
    EXPECT_EQ(on_a_thread_of_autograd(), nullptr);
    for (StageWork* work : {&first, &second, &first}) {
      StageWorkScope::begin_action(*work);
      EXPECT_EQ(StageWork::current(), work);
      EXPECT_EQ(on_a_thread_of_autograd(), work);
    }
    {
      const StageWorkScope inner(/*on_autograd_threads=*/false);
      StageWorkScope::begin_action(second);
      EXPECT_EQ(StageWork::current(), &second);
    }
    EXPECT_EQ(StageWork::current(), &first);
  }
  EXPECT_EQ(StageWork::current(), nullptr);
  EXPECT_EQ(on_a_thread_of_autograd(), nullptr);
}

TEST(StageWork, OtherThreadsWorkForNobody) {
  StageWork work(StageId{});
  const StageWorkScope scope(/*on_autograd_threads=*/true);
  StageWorkScope::begin_action(work);
  StageWork* seen = &work;
  std::thread([&] { seen = StageWork::current(); }).join();
  EXPECT_EQ(seen, nullptr);
}

TEST(StageWork, KeepsTheLastShortageOfItsAction) {
  const OutOfMemory first{c10::kCPU, 1, 2, 3};
  const OutOfMemory second{c10::kCPU, 4, 5, 6};
  StageWork work(StageId{});
  report_out_of_memory(first);  // this thread works for no stage
  {
    const StageWorkScope scope(/*on_autograd_threads=*/false);
    StageWorkScope::begin_action(work);
    EXPECT_FALSE(work.out_of_memory().has_value());
    report_out_of_memory(first);
    report_out_of_memory(second);
  }
  ASSERT_TRUE(work.out_of_memory().has_value())
      << "the shortage must be known after the action, too";
  EXPECT_EQ(work.out_of_memory()->asked, 4);
  const StageWorkScope scope(/*on_autograd_threads=*/false);
  StageWorkScope::begin_action(work);
  EXPECT_FALSE(work.out_of_memory().has_value())
      << "a new action begins without the shortage of the action before";
}

class CudaMemory : public testing::DeviceTest {};

TEST_F(CudaMemory, TheAllocatorTellsWhatItLacks) {
  if (!testing::for_gpus()) return;
  watch_cuda_memory();
  watch_cuda_memory();
  StageWork work(StageId{});
  const StageWorkScope scope(/*on_autograd_threads=*/false);
  StageWorkScope::begin_action(work);
  constexpr int64_t kTooMuch = int64_t{1} << 46;  // 64 TiB
  EXPECT_THROW((void)at::empty({kTooMuch}, at::TensorOptions(testing::device()).dtype(at::kByte)),
               c10::OutOfMemoryError);
  const std::optional<OutOfMemory> memory = work.out_of_memory();
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->device, testing::device());
  EXPECT_GE(memory->asked, kTooMuch);
  EXPECT_GT(memory->free, 0);
  EXPECT_GE(memory->total, memory->free);
  EXPECT_LT(memory->total, kTooMuch);
}

}  // namespace
}  // namespace gpipe::internal
