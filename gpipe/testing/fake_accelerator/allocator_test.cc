#include "gpipe/testing/fake_accelerator/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace gpipe::testing::fake {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr StreamId kA{0, 0}, kB{0, 1}, kOther{1, 0};

class AllocatorTest : public ::testing::Test {
 protected:
  // Launches a kernel that reads or writes the block's first number.
  void use(StreamId stream, void* block, bool write) {
    auto* number = static_cast<float*>(block);
    runtime_.launch(stream,
                    {write ? "writer" : "reader",
                     Task::Kind::kKernel,
                     {{Footprint(number, sizeof(float)), write}},
                     [number, write, this] { write ? void(*number = 7) : void(read_ = *number); },
                     {}});
  }
  // Launches a kernel that declares a use of the block, but does not use it. A real use would make
  // the test program itself race if the streams race.
  void claim(StreamId stream, void* block, bool write) {
    runtime_.launch(stream, {write ? "writer" : "reader",
                             Task::Kind::kKernel,
                             {{Footprint(static_cast<float*>(block), sizeof(float)), write}},
                             [] {},
                             {}});
  }
  // The number that a stream reads from the block.
  float read(StreamId stream, void* block) {
    use(stream, block, /*write=*/false);
    runtime_.drain();
    return read_;
  }
  // Stops the stream until open() is called.
  void stop(StreamId stream) {
    runtime_.launch(stream,
                    {"gate", Task::Kind::kKernel, {}, [opened = opened_] { opened.wait(); }, {}});
  }
  void open() { open_.set_value(); }

  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
  float read_ = 0;
  Runtime runtime_;
  Allocator allocator_{runtime_};
};

TEST_F(AllocatorTest, ABlockIsLargeEnoughAndAligned) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{512}, size_t{513}, size_t{100'000}}) {
    void* block = allocator_.allocate(kA, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 512, 0U);
    runtime_.drain();
    std::memset(block, 0, bytes);  // the address sanitizer checks that the block is large enough
  }
}

TEST_F(AllocatorTest, TheLastFreedIsTheNextOfItsStreamAndSize) {
  void* a = allocator_.allocate(kA, 1000);
  void* b = allocator_.allocate(kA, 1000);
  void* small = allocator_.allocate(kA, 10);
  void* others = allocator_.allocate(kB, 1000);
  EXPECT_NE(a, b);
  for (void* block : {b, a, small, others}) allocator_.free(block);
  EXPECT_EQ(allocator_.allocate(kA, 900), a);
  EXPECT_EQ(allocator_.allocate(kB, 900), others);
  EXPECT_EQ(allocator_.allocate(kA, 1024), b);
  EXPECT_NE(allocator_.allocate(kA, 1024), small);
  EXPECT_EQ(allocator_.counts().from_system, 5);
  EXPECT_EQ(allocator_.counts().reused, 3);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(AllocatorTest, NewMemoryIsNan) {
  void* block = allocator_.allocate(kA, 4);
  EXPECT_TRUE(std::isnan(read(kA, block)));
  use(kA, block, /*write=*/true);
  EXPECT_EQ(read(kA, block), 7);
  allocator_.free(block);
  ASSERT_EQ(allocator_.allocate(kA, 4), block);
  EXPECT_TRUE(std::isnan(read(kA, block)));
}

TEST_F(AllocatorTest, FreedMemoryIsNanAtOnceInTheOrderOfItsStream) {
  void* block = allocator_.allocate(kA, 4);
  use(kA, block, /*write=*/true);
  stop(kA);
  use(kA, block, /*write=*/false);
  allocator_.free(block);  // a block may be freed while its own stream still reads it
  open();
  runtime_.drain();
  EXPECT_EQ(read_, 7);
  EXPECT_TRUE(std::isnan(read(kA, block)));
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(AllocatorTest, FreedWhileAnotherStreamUsesItIsARace) {
  void* block = allocator_.allocate(kA, 4);
  runtime_.wait(kB, runtime_.record(kA));
  claim(kB, block, /*write=*/false);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
  allocator_.free(block);
  EXPECT_THAT(runtime_.take_races(),
              Contains(AllOf(HasSubstr("free on fake:0/0"), HasSubstr("reader on fake:0/1"))));
}

TEST_F(AllocatorTest, FreedAfterTheOwnerHasWaitedIsNone) {
  void* block = allocator_.allocate(kA, 4);
  runtime_.wait(kB, runtime_.record(kA));
  use(kB, block, /*write=*/false);
  runtime_.wait(kA, runtime_.record(kB));
  allocator_.free(block);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(AllocatorTest, NewMemoryUsedOnAnotherStreamWithoutAWaitIsARace) {
  claim(kB, allocator_.allocate(kA, 4), /*write=*/true);
  EXPECT_THAT(runtime_.take_races(), Contains(AllOf(HasSubstr("writer on fake:0/1"),
                                                    HasSubstr("allocation on fake:0/0"))));
}

TEST_F(AllocatorTest, ARecordedBlockComesBackWhenItsUsersAreDone) {
  void* block = allocator_.allocate(kA, 4);
  use(kA, block, /*write=*/true);
  runtime_.wait(kB, runtime_.record(kA));
  stop(kB);
  use(kB, block, /*write=*/false);
  // An address within the block, as a view has it.
  allocator_.record(static_cast<char*>(block) + 100, kB);
  allocator_.free(block);
  EXPECT_NE(allocator_.allocate(kA, 4), block);
  open();
  runtime_.drain();
  EXPECT_EQ(read_, 7) << "the block was not overwritten";
  EXPECT_EQ(allocator_.allocate(kA, 4), block);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(AllocatorTest, ARecordIsForOneLife) {
  void* block = allocator_.allocate(kA, 4);
  allocator_.record(block, kB);
  allocator_.free(block);
  runtime_.drain();
  ASSERT_EQ(allocator_.allocate(kA, 4), block);
  stop(kB);
  allocator_.free(block);
  EXPECT_EQ(allocator_.allocate(kA, 4), block);
  open();
}

TEST_F(AllocatorTest, OfAllUsersEachIsWaitedFor) {
  void* block = allocator_.allocate(kA, 4);
  allocator_.record(block, kB);
  allocator_.record(block, kOther);
  stop(kOther);
  allocator_.free(block);
  runtime_.synchronize(kB);
  EXPECT_NE(allocator_.allocate(kA, 4), block);
  open();
}

TEST_F(AllocatorTest, AUserThatWasNotRecordedIsFoundBesideOneThatWas) {
  void* block = allocator_.allocate(kA, 4);
  runtime_.wait(kB, runtime_.record(kA));
  runtime_.wait(kOther, runtime_.record(kA));
  use(kB, block, /*write=*/false);
  claim(kOther, block, /*write=*/false);
  allocator_.record(block, kB);
  allocator_.free(block);
  while (!runtime_.is_over(runtime_.record(kB))) std::this_thread::yield();
  EXPECT_EQ(allocator_.allocate(kA, 4), block);
  EXPECT_THAT(runtime_.take_races(), Contains(HasSubstr("reader on fake:1/0")));
}

// If the allocator finds by chance that an event is over, this must not order other work: the race
// on `watched` is still reported.
TEST_F(AllocatorTest, TakingABlockBackHidesNoMissingWait) {
  void* watched = allocator_.allocate(kA, 4);
  runtime_.wait(kB, runtime_.record(kA));
  claim(kB, watched, /*write=*/true);
  void* block = allocator_.allocate(kA, 1000);
  allocator_.record(block, kB);
  allocator_.free(block);
  while (!runtime_.is_over(runtime_.record(kB))) std::this_thread::yield();
  ASSERT_EQ(allocator_.allocate(kA, 1000), block);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
  claim(kA, watched, /*write=*/false);
  EXPECT_THAT(runtime_.take_races(), Contains(HasSubstr("writer on fake:0/1")));
}

TEST_F(AllocatorTest, PinnedMemoryIsTheHosts) {
  void* block = allocator_.allocate_pinned(100);
  EXPECT_TRUE(allocator_.is_pinned(static_cast<char*>(block) + 99));
  EXPECT_FALSE(allocator_.is_pinned(&read_));
  EXPECT_FALSE(allocator_.is_pinned(allocator_.allocate(kA, 100)));
  EXPECT_TRUE(std::isnan(*static_cast<float*>(block))) << "the host has not waited for anything";
  allocator_.free(block);
  EXPECT_FALSE(allocator_.is_pinned(block));
  EXPECT_EQ(allocator_.allocate_pinned(100), block);
}

TEST_F(AllocatorTest, PinnedMemoryThatACopyUsesIsKeptForIt) {
  void* block = allocator_.allocate_pinned(100);
  *static_cast<float*>(block) = 5;
  stop(kA);
  use(kA, block, /*write=*/false);
  allocator_.record(block, kA);
  allocator_.free(block);
  EXPECT_NE(allocator_.allocate_pinned(100), block);
  open();
  runtime_.drain();
  EXPECT_EQ(read_, 5);
  EXPECT_EQ(allocator_.allocate_pinned(100), block);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(AllocatorTest, PinnedMemoryFreedWhileUsedAndNotRecordedIsARace) {
  void* block = allocator_.allocate_pinned(100);
  claim(kA, block, /*write=*/false);
  runtime_.drain();
  allocator_.free(block);
  EXPECT_THAT(runtime_.take_races(), IsEmpty()) << "the host has waited";
  block = allocator_.allocate_pinned(100);
  claim(kA, block, /*write=*/false);
  allocator_.free(block);
  EXPECT_THAT(runtime_.take_races(), Contains(HasSubstr("free by the host")));
  runtime_.drain();
}

TEST_F(AllocatorTest, OnlyWhatIsAllocatedCanBeFreed) {
  void* block = allocator_.allocate(kA, 4);
  EXPECT_THROW(allocator_.free(static_cast<char*>(block) + 1), std::logic_error);
  EXPECT_THROW(allocator_.free(&read_), std::logic_error);
  allocator_.free(block);
  EXPECT_THROW(allocator_.free(block), std::logic_error);
}

TEST_F(AllocatorTest, APoolGivesItsBlocksToItsOwnRecordingsOnly) {
  const int64_t pool = allocator_.make_pool();
  runtime_.begin_recording(kB);
  allocator_.begin_pool(kB, pool);
  void* const block = allocator_.allocate(kB, 100);
  allocator_.free(block);
  EXPECT_EQ(allocator_.allocate(kB, 100), block);  // the same recording gets the freed block again
  allocator_.free(block);
  allocator_.end_pool(kB);
  const std::vector<Task> tasks = runtime_.end_recording(kB);
  EXPECT_NE(allocator_.allocate(kB, 100), block);
  runtime_.begin_recording(kB);
  allocator_.begin_pool(kB, pool);
  EXPECT_EQ(allocator_.allocate(kB, 100), block);
  allocator_.end_pool(kB);
  runtime_.end_recording(kB);
  allocator_.free(block);
  for (int user = 0; user < 2; ++user) allocator_.release_pool(pool);
}

// A use that is recorded while anything is recorded on the device is forgotten if the block is
// freed before the recording ends: the block is reused although the other stream may still read it,
// as in LibTorch.
TEST_F(AllocatorTest, AUseRecordedDuringARecordingIsForgottenIfTheBlockIsFreedBeforeItsEnd) {
  const int64_t pool = allocator_.make_pool();
  constexpr StreamId kSide{0, 2};
  void* const before = allocator_.allocate(kA, 4);
  void* const meanwhile = allocator_.allocate(kA, 1000);
  void* const after = allocator_.allocate(kA, 2000);
  void* const elsewhere = allocator_.allocate(kOther, 4);
  runtime_.wait(kB, runtime_.record(kA));
  for (void* block : {before, meanwhile, after}) claim(kB, block, /*write=*/false);
  allocator_.record(before, kB);
  allocator_.begin_pool(kSide, pool);
  for (void* block : {meanwhile, after}) allocator_.record(block, kB);
  allocator_.record(elsewhere, kB);
  for (void* block : {before, meanwhile, elsewhere}) allocator_.free(block);
  EXPECT_NE(allocator_.allocate(kA, 1000), meanwhile)
      << "the block waits for the end of the recording";
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
  allocator_.end_pool(kSide);
  allocator_.free(after);
  EXPECT_EQ(allocator_.allocate(kA, 1000), meanwhile);
  EXPECT_THAT(runtime_.take_races(),
              Contains(AllOf(HasSubstr("free on fake:0/0"), HasSubstr("reader on fake:0/1"))));
  while (!runtime_.is_over(runtime_.record(kB))) std::this_thread::yield();
  EXPECT_EQ(allocator_.allocate(kA, 4), before);
  EXPECT_EQ(allocator_.allocate(kA, 2000), after);
  EXPECT_EQ(allocator_.allocate(kOther, 4), elsewhere);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
  allocator_.release_pool(pool);
}

TEST_F(AllocatorTest, APoolDiesWithItsLastUser) {
  const int64_t pool = allocator_.make_pool();
  const auto record = [&] {
    allocator_.begin_pool(kB, pool);
    allocator_.end_pool(kB);
  };
  record();
  record();
  allocator_.release_pool(pool);
  EXPECT_NO_THROW(record());
  allocator_.use_pool(pool);
  for (int graph = 0; graph < 2; ++graph) allocator_.release_pool(pool);
  EXPECT_NO_THROW(record());
  for (int user = 0; user < 2; ++user) allocator_.release_pool(pool);
  EXPECT_THROW(record(), std::logic_error);
  EXPECT_THROW(allocator_.use_pool(pool), std::logic_error);
  EXPECT_THROW(allocator_.release_pool(pool), std::logic_error);
}

TEST_F(AllocatorTest, AReplayPoisonsWhatItsRecordingTookAndFreed) {
  const int64_t pool = allocator_.make_pool();
  runtime_.begin_recording(kB);
  allocator_.begin_pool(kB, pool);
  void* const block = allocator_.allocate(kB, 100);
  use(kB, block, /*write=*/true);
  void* const freed = allocator_.allocate(kB, 1000);
  use(kB, freed, /*write=*/true);
  allocator_.free(freed);
  allocator_.end_pool(kB);
  const std::vector<Task> tasks = runtime_.end_recording(kB);
  for (int k = 0; k < 2; ++k) {
    runtime_.replay(kA, tasks);
    EXPECT_EQ(read(kA, block), 7);
    EXPECT_TRUE(std::isnan(read(kA, freed)));
  }
  // The block is freed while nothing is recorded, so its contents stay as they are until the next
  // replay.
  allocator_.free(block);
  EXPECT_EQ(read(kA, block), 7);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
  allocator_.release_pool(pool);
}

TEST_F(AllocatorTest, ABlockMayOutliveItsPool) {
  const int64_t pool = allocator_.make_pool();
  runtime_.begin_recording(kB);
  allocator_.begin_pool(kB, pool);
  void* const block = allocator_.allocate(kB, 100);
  allocator_.end_pool(kB);
  const std::vector<Task> tasks = runtime_.end_recording(kB);
  allocator_.release_pool(pool);
  runtime_.replay(kB, tasks);
  runtime_.drain();
  allocator_.free(block);
  EXPECT_THROW(allocator_.free(block), std::logic_error);
}

TEST_F(AllocatorTest, ADeviceHasNoMoreThanItsLimit) {
  allocator_.limit(0, 2048);
  void* first = allocator_.allocate(kA, 1000);
  void* second = allocator_.allocate(kB, 1000);
  EXPECT_EQ(allocator_.in_use(0), 2048u);
  try {
    allocator_.allocate(kB, 100);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Allocator::Short& error) {
    EXPECT_EQ(error.asked, 100u);
    EXPECT_EQ(error.free, 0u);
    EXPECT_EQ(error.total, 2048u);
  }
  allocator_.free(allocator_.allocate(kOther, 4096));
  allocator_.free(allocator_.allocate_pinned(4096));
  allocator_.free(first);
  EXPECT_EQ(allocator_.in_use(0), 1024u);
  EXPECT_EQ(allocator_.peak(0), 2048u);
  allocator_.reset_peak(0);
  EXPECT_EQ(allocator_.peak(0), 1024u);
  allocator_.limit(0, 100);
  EXPECT_THROW(allocator_.allocate(kA, 1), Allocator::Short) << "more is in use already";
  EXPECT_EQ(allocator_.failures(), 2);
  allocator_.free(second);
  EXPECT_EQ(allocator_.in_use(0), 0u);
}

TEST_F(AllocatorTest, AnAllocationFailsThatWasToldTo) {
  allocator_.fail(0, 1);
  allocator_.free(allocator_.allocate(kOther, 4));
  allocator_.free(allocator_.allocate(kA, 4));
  EXPECT_THROW(allocator_.allocate(kA, 4), Allocator::Short);
  allocator_.free(allocator_.allocate(kA, 4));
  EXPECT_EQ(allocator_.failures(), 1);
}

}  // namespace
}  // namespace gpipe::testing::fake
