#include "command/run_main.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "command/files.h"
#include "command/interrupt.h"

namespace gpipe::command {
namespace {

using ::testing::HasSubstr;

struct Result {
  int code = 0;
  std::string output, errors;
};

Result run(const std::function<Work()>& prepare, const MainOptions& options = {},
           std::vector<const char*> arguments = {}) {
  arguments.insert(arguments.begin(), "program");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Result result;
  result.code = run_main(static_cast<int>(arguments.size()), arguments.data(), "What it does.",
                         prepare, options);
  result.output = ::testing::internal::GetCapturedStdout();
  result.errors = ::testing::internal::GetCapturedStderr();
  return result;
}

TEST(RunMain, ThereMayBeNothingLeftToDo) {
  const Result result = run([]() -> Work { return nullptr; });
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.errors, "");
  EXPECT_EQ(run([]() -> Work { return [] { return 7; }; }).code, 7);
}

TEST(RunMain, AMistakeThatIsFoundWhileWorking) {
  const char* const arguments[] = {"program"};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_main(1, arguments, "", [] { throw std::invalid_argument("give 3"); }),
            kUsageExitCode);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "error: give 3\n");
  EXPECT_EQ(run_main(1, arguments, "", [] {}), 0);
}

TEST(RunMain, AnErrorGivesATerminalNoOrders) {
  const std::string text("two\nlines \x1b[2J\xff\0", 15);
  const Result mistake = run([&]() -> Work { throw std::invalid_argument(text); });
  EXPECT_EQ(mistake.errors, "error: two\nlines \\x1b[2J\\xff\n");
  EXPECT_EQ(run([]() -> Work { return nullptr; }, {}, {"\x1b[31m"}).errors,
            "error: '\\x1b[31m' is not a flag; --help lists the flags\n");
  EXPECT_EQ(run([]() -> Work { return nullptr; }, {}, {"--a\nb=1"}).errors,
            "error: there is no flag --a\\x0ab; --help lists the flags\n");
}

TEST(RunMain, AMistakeLeavesNoFolder) {
  const std::string folder =
      std::filesystem::weakly_canonical(::testing::TempDir() + "/of_a_mistake").string();
  const auto check = [&] { check_writable_folder("--run", folder); };
  const Result mistake = run([&]() -> Work {
    check();
    throw std::invalid_argument("give 3");
  });
  EXPECT_EQ(mistake.errors, "error: give 3\n");
  EXPECT_FALSE(std::filesystem::exists(folder));
  const Result done = run([&]() -> Work {
    check();
    return nullptr;
  });
  EXPECT_EQ(done.errors, "created the folder " + folder + "\n");
  EXPECT_TRUE(std::filesystem::exists(folder));
}

TEST(RunMain, ErrorsBeforeAndInTheWork) {
  const Result mistake = run([]() -> Work { throw std::invalid_argument("give 3"); });
  EXPECT_EQ(mistake.code, kUsageExitCode);
  EXPECT_EQ(mistake.errors, "error: give 3\n");
  EXPECT_EQ(run([]() -> Work { throw std::runtime_error("x"); }).code, kErrorExitCode);
  EXPECT_EQ(run([]() -> Work { return []() -> int { throw std::invalid_argument("x"); }; }).code,
            kErrorExitCode);
  EXPECT_EQ(run([]() -> Work { return []() -> int { throw Interrupted(); }; }).code,
            kInterruptedExitCode);
  const Result flag = run([]() -> Work { return nullptr; }, {}, {"--quux"});
  EXPECT_EQ(flag.code, kUsageExitCode);
  EXPECT_THAT(flag.errors, HasSubstr("there is no flag --quux"));
}

TEST(RunMain, ProgramsMayHaveCodesAndWordsOfTheirOwn) {
  MainOptions options;
  options.code = [](const std::exception& error) {
    return dynamic_cast<const std::range_error*>(&error) != nullptr ? 127 : exit_code_of(error);
  };
  options.message = [](const std::exception& error) { return std::string("oh: ") + error.what(); };
  options.says = [](const std::exception& error) { return std::string("so: ") + error.what(); };
  const auto throws = [](const auto& error) { return [error]() -> Work { throw error; }; };
  const Result start = run(throws(std::range_error("no program")), options);
  EXPECT_EQ(start.code, 127);
  EXPECT_EQ(start.errors, "error: oh: no program\n");
  const Result mistake = run(throws(std::invalid_argument("give 3")), options);
  EXPECT_EQ(mistake.code, kUsageExitCode);
  EXPECT_EQ(mistake.errors, "error: so: give 3\n");
  // An empty message of `says` means that another process reports the mistake. Then nothing is
  // printed, and the exit code stays.
  options.says = [](const std::exception&) { return ""; };
  const Result silent = run(throws(std::invalid_argument("give 3")), options);
  EXPECT_EQ(silent.code, kUsageExitCode);
  EXPECT_EQ(silent.errors, "");
}

TEST(RunMain, AnswersWithoutPreparing) {
  const auto fails = []() -> Work { throw std::runtime_error("prepared"); };
  const Result help = run(fails, {}, {"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("What it does."));
  MainOptions options;
  options.version = "seven";
  EXPECT_EQ(run(fails, options, {"--version"}).output, "seven\n");
  EXPECT_EQ(run(fails, {}, {"--version"}).output, std::string(kProject) + "\n");
}

TEST(RunMain, WhatCannotBeWrittenIsAnError) {
  const auto breaks = []() -> Work {
    return [] {
      std::cout.setstate(std::ios::badbit);
      return 0;
    };
  };
  const Result result = run(breaks);
  std::cout.clear();
  EXPECT_EQ(result.code, kErrorExitCode);
  EXPECT_THAT(result.errors, HasSubstr("cannot be written to standard output"));
}

}  // namespace
}  // namespace gpipe::command
