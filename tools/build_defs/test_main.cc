// The main of every gpipe_cc_test. As gtest_main, and with GPIPE_FORBID_SKIPS set (--config=gpu) a
// skipped test makes the program fail: a GPU test that found no GPU has shown nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const int skipped = testing::UnitTest::GetInstance()->skipped_test_count();
  const char* forbid = std::getenv("GPIPE_FORBID_SKIPS");
  if (skipped > 0 && forbid != nullptr && *forbid != '\0') {
    std::cerr << skipped << " test(s) skipped, which GPIPE_FORBID_SKIPS forbids\n";
    return 1;
  }
  return result;
}
