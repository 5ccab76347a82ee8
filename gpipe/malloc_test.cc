// Tests that a training loop keeps its memory: steps do not fault in again pages that were free for
// a while.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace gpipe {
namespace {

constexpr int64_t kBuffers = 16;
constexpr int64_t kBytes = int64_t{2} << 20;

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Uses the allocator as a step does: activations are allocated in the forward, and freed one by one
// in the backward.
void use_memory() {
  std::vector<std::unique_ptr<char[]>> buffers;
  for (int64_t k = 0; k < kBuffers; ++k) {
    buffers.push_back(std::make_unique<char[]>(kBytes));
    std::memset(buffers.back().get(), 1, kBytes);
  }
  while (!buffers.empty()) {
    buffers.pop_back();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST(MallocTest, AWorkersMemoryStaysBetweenSteps) {
  constexpr int kSteps = 3;
  int64_t faults = 0;
  std::thread worker([&faults] {
    for (int step = 0; step < 2 + kSteps; ++step) {
      if (step == 2) faults = -page_faults();
      use_memory();
    }
    faults += page_faults();
  });
  worker.join();
  const int64_t pages = kSteps * kBuffers * kBytes / sysconf(_SC_PAGESIZE);
  EXPECT_LT(faults, pages / 10) << "of " << pages << " pages";
}

}  // namespace
}  // namespace gpipe
