#include "gpipe/testing/seed.h"

#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <vector>

namespace gpipe::testing {
namespace {

std::vector<uint64_t> seeds;
const bool noted = before_each_test([](uint64_t seed) { seeds.push_back(seed); });

TEST(Seed, IsFixedUnlessTheVariableIsSet) {
  EXPECT_EQ(seed_from(nullptr), seed_from(""));
  EXPECT_EQ(seed_from("0"), 0);
  EXPECT_EQ(seed_from("18446744073709551615"), 18446744073709551615U);
}

TEST(Seed, IsNothingButANumber) {
  for (const char* text : {"x", "1x", " 1", "-1", "1.5", "18446744073709551616"}) {
    EXPECT_THROW(seed_from(text), std::invalid_argument) << text;
  }
}

TEST(Seed, GeneratorsRepeatAndDifferByStream) {
  EXPECT_EQ(test_random(1), test_random(1));
  EXPECT_NE(test_random(1), test_random(2));
  EXPECT_NE(test_random(1), test_random(uint64_t{1} << 32));
}

TEST(Seed, FunctionsRunBeforeTheSuiteAndEachTest) {
  ASSERT_TRUE(noted);
  const size_t before = seeds.size();
  ASSERT_GE(before, 2) << "the main of this program has the listener";
  EXPECT_EQ(seeds.back(), test_seed());
  std::ostringstream out;
  make_seed_listener(out)->OnTestStart(*::testing::UnitTest::GetInstance()->current_test_info());
  EXPECT_EQ(seeds.size(), before + 1);
}

TEST(Seed, IsToldWithTheFirstFailureOfEachTest) {
  using Result = ::testing::TestPartResult;
  const auto& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string line = "GPIPE_TEST_SEED=" + std::to_string(test_seed()) + "\n";
  std::ostringstream out;
  const auto listener = make_seed_listener(out);
  listener->OnTestStart(test);
  listener->OnTestPartResult(Result(Result::kSkip, "file", 1, "skipped"));
  EXPECT_EQ(out.str(), "");
  listener->OnTestPartResult(Result(Result::kNonFatalFailure, "file", 1, "first"));
  listener->OnTestPartResult(Result(Result::kFatalFailure, "file", 2, "second"));
  EXPECT_EQ(out.str(), line);
  listener->OnTestStart(test);
  listener->OnTestPartResult(Result(Result::kFatalFailure, "file", 1, "next test"));
  EXPECT_EQ(out.str(), line + line);
}

}  // namespace
}  // namespace gpipe::testing
