// The main function of every gpipe_cc_test. It does what gtest_main does, with the seed of
// gpipe/testing/seed.h. If GPIPE_FORBID_SKIPS is set (--config=gpu), a skipped test makes the
// program fail, because a GPU test that found no GPU has shown nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <set>
#include <string>

#include "gpipe/testing/seed.h"

// The end of the path of the file whose tests are to run, if several files are compiled as one
// (gpipe_cc_tests). Otherwise it is not defined.
extern const char* const gpipe_tests_of __attribute__((weak));

namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Leaves out the tests of all other files, whatever --gtest_filter chooses among those that stay.
// Returns false, and says why, if no test stays, because the program would pass without having
// shown anything, or if a test of another file has the same name as one of these.
bool keep_tests_of(const std::string& file) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::set<std::string> ours;
  std::set<std::string> others;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      const bool is_ours = ends_with("/" + std::string(test.file()), file);
      (is_ours ? ours : others).insert(std::string(suite.name()) + "." + test.name());
    }
  }
  if (ours.empty()) std::cerr << "no test is of " << file << "\n";
  std::string& filter = testing::GTEST_FLAG(filter);
  bool excludes = filter.find('-') != std::string::npos;
  for (const std::string& name : others) {
    if (ours.count(name) != 0) {
      std::cerr << "two files of one unit have a test " << name << ": rename one\n";
      return false;
    }
    filter += (excludes ? ":" : "-") + name;
    excludes = true;
  }
  return !ours.empty();
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (&gpipe_tests_of != nullptr && !keep_tests_of(gpipe_tests_of)) return 1;
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
