#include "machine/memory.h"

#include <gtest/gtest.h>

namespace gpipe::machine {
namespace {

TEST(AvailableMemory, IsSomeOnAMachineThatRunsATest) {
  EXPECT_GT(available_memory(), int64_t{64} << 20);
}

}  // namespace
}  // namespace gpipe::machine
