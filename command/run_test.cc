#include "command/run.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "command/interrupt.h"

namespace gpipe::command {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Work = std::function<int()>;

struct Result {
  int code = 0;
  std::string errors;
};

Result run(const std::function<Work()>& prepare, std::vector<const char*> arguments = {}) {
  arguments.insert(arguments.begin(), "program");
  ::testing::internal::CaptureStderr();
  Result result;
  result.code =
      run_command(static_cast<int>(arguments.size()), arguments.data(), "What it does.", prepare);
  result.errors = ::testing::internal::GetCapturedStderr();
  return result;
}

TEST(RunCommand, GivesTheCodeOfTheWork) {
  EXPECT_EQ(run([]() -> Work { return [] { return 0; }; }).code, 0);
  EXPECT_EQ(run([]() -> Work { return [] { return 130; }; }).code, 130);
}

TEST(RunCommand, AnotherProcessMaySayWhatIsWrong) {
  const auto run_saying = [](const std::string& text) {
    const char* const arguments[] = {"program"};
    ::testing::internal::CaptureStderr();
    const int code = run_command(
        1, arguments, "What it does.", []() -> Work { throw std::invalid_argument("give 3"); }, {},
        [&](const std::exception& mistake) {
          EXPECT_STREQ(mistake.what(), "give 3");
          return text;
        });
    EXPECT_EQ(code, kUsageExitCode);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(run_saying("rank 1: give 3"), "error: rank 1: give 3\n");
  EXPECT_EQ(run_saying(""), "");
}

TEST(RunCommand, WorksBySettings) {
  struct Settings {
    int code = 0;
  };
  const char* const arguments[] = {"program"};
  EXPECT_EQ(run_command<Settings>(
                1, arguments, "What it does.", [] { return Settings{7}; },
                [](const Settings& settings) { return settings.code; }),
            7);
}

TEST(RunCommand, AMistakeBeforeTheWorkIsWrongUsage) {
  const Result plain = run([]() -> Work { throw std::invalid_argument("give 3"); });
  EXPECT_EQ(plain.code, kUsageExitCode);
  EXPECT_THAT(plain.errors, HasSubstr("error: give 3"));
  const Result torch = run([]() -> Work { TORCH_CHECK_VALUE(false, "give 4"); });
  EXPECT_EQ(torch.code, kUsageExitCode);
  EXPECT_THAT(torch.errors, AllOf(HasSubstr("error: give 4"), Not(HasSubstr("Exception raised"))));
  EXPECT_EQ(run([]() -> Work { return [] { return 0; }; }, {"--quux"}).code, kUsageExitCode);
}

TEST(RunCommand, TheSameWhileWorkingIsAnError) {
  const Result result =
      run([]() -> Work { return []() -> int { throw std::invalid_argument("x"); }; });
  EXPECT_EQ(result.code, kErrorExitCode);
  EXPECT_THAT(result.errors, HasSubstr("error: x"));
  EXPECT_EQ(run([]() -> Work { throw std::runtime_error("x"); }).code, kErrorExitCode);
}

TEST(RunCommand, AnInterruptedWorkIsNoError) {
  const Result result = run([]() -> Work { return []() -> int { throw Interrupted(); }; });
  EXPECT_EQ(result.code, kInterruptedExitCode);
  EXPECT_EQ(result.errors, "");
}

TEST(RunCommand, HelpNeedsNoPreparation) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run([]() -> Work { throw std::runtime_error("x"); }, {"--help"}).code, 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("What it does."));
}

TEST(IsOutOfMemory, OnEveryDevice) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("a damaged file")));
  try {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory");
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error));
  }
  try {
    c10::GetDefaultCPUAllocator()->allocate(size_t{1} << 60);
    FAIL() << "there is no such memory";
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.what();
  }
}

}  // namespace
}  // namespace gpipe::command
