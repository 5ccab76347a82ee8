// The main of every gpipe_cc_test. As gtest_main, with the seed of gpipe/testing/seed.h, and with
// GPIPE_FORBID_SKIPS set (--config=gpu) a skipped test makes the program fail: a GPU test that
// found no GPU has shown nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "gpipe/testing/seed.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(
      gpipe::testing::make_seed_listener(std::cout).release());  // GoogleTest owns it
  const int result = RUN_ALL_TESTS();
  const int skipped = testing::UnitTest::GetInstance()->skipped_test_count();
  const char* forbid = std::getenv("GPIPE_FORBID_SKIPS");
  if (skipped > 0 && forbid != nullptr && *forbid != '\0') {
    std::cerr << skipped << " test(s) skipped, which GPIPE_FORBID_SKIPS forbids\n";
    return 1;
  }
  return result;
}
