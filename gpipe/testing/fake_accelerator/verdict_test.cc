#include "gpipe/testing/fake_accelerator/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace gpipe::testing::fake {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::TestPartResult;

constexpr StreamId kA{0, 0}, kB{1, 0};

class VerdictTest : public ::testing::Test {
 protected:
  VerdictTest() {
    runtime_.add_block(memory_, sizeof(memory_), "block");
    runtime_.set_test_thread(std::this_thread::get_id());
  }

  void write_on(StreamId stream) {
    runtime_.launch(stream,
                    {"writer", Task::Kind::kKernel, {{Footprint(memory_, 8), true}}, nullptr, {}});
  }
  void fail_on(StreamId stream) {
    runtime_.launch(
        stream,
        {"broken", Task::Kind::kKernel, {}, [] { throw std::runtime_error("bad index"); }, {}});
  }
  void wait_elsewhere() {
    std::thread([this] { runtime_.synchronize(kA, Wait::kImplied, "item"); }).join();
  }

  char memory_[8] = {};
  Runtime runtime_;
};

TEST_F(VerdictTest, NothingToComplainAbout) {
  write_on(kA);
  runtime_.wait(kB, runtime_.record(kA));
  write_on(kB);
  EXPECT_THAT(complaints(runtime_), IsEmpty());
}

TEST_F(VerdictTest, ComplainsOfAllThatIsWrongOnce) {
  write_on(kA);
  write_on(kB);
  wait_elsewhere();
  fail_on(kB);  // the kernel may not have run yet when complaints() is called
  EXPECT_THAT(complaints(runtime_),
              ElementsAre(AllOf(HasSubstr("race: writer on fake:1/0"), HasSubstr("fake:0/0")),
                          HasSubstr("unexpected wait: a thread that is not the test's"),
                          AllOf(HasSubstr("error of device 1"), HasSubstr("bad index"))));
  EXPECT_THAT(complaints(runtime_), IsEmpty());
  write_on(kB);  // does not throw: the device works again
}

// All complaints that arise during a test fail it, and those of an earlier test do not. The test
// calls the listener as a test program does, with the current test as the one that ends.
TEST_F(VerdictTest, FailsTheTestInWhichItHappened) {
  Verdict verdict(runtime_);
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  ::testing::TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
    verdict.OnTestStart(test);
    write_on(kA);
    verdict.OnTestEnd(test);
    EXPECT_EQ(results.size(), 0);
    verdict.OnTestStart(test);
    write_on(kB);  // no race: the host waited for the first write at its test's end
    write_on(kA);
    wait_elsewhere();
    fail_on(kA);
    verdict.OnTestEnd(test);
  }
  ASSERT_EQ(results.size(), 3);
  EXPECT_THAT(results.GetTestPartResult(0).message(), HasSubstr("race: "));
  EXPECT_THAT(results.GetTestPartResult(1).message(), HasSubstr("unexpected wait: "));
  EXPECT_THAT(results.GetTestPartResult(2).message(), HasSubstr("error of device 0: "));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(results.GetTestPartResult(i).failed());
}

TEST_F(VerdictTest, TheThreadThatRunsTheTestMayWait) {
  Verdict verdict(runtime_);
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  std::thread([&] {
    verdict.OnTestStart(test);
    runtime_.synchronize(kA, Wait::kImplied, "item");
  }).join();
  EXPECT_THAT(complaints(runtime_), IsEmpty());
  runtime_.launch(kA, {"k", Task::Kind::kKernel, {}, nullptr, {}});
  runtime_.synchronize(kA, Wait::kImplied, "item");
  EXPECT_EQ(complaints(runtime_).size(), 1U);
}

}  // namespace
}  // namespace gpipe::testing::fake
