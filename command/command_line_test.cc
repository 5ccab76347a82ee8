#include "command/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "command/flags.h"

namespace gpipe::command {

// A type of this project that says what to give.
struct Even {
  int64_t number = 0;
};
bool AbslParseFlag(absl::string_view text, Even* even, std::string* error) {
  if (absl::SimpleAtoi(text, &even->number) && even->number % 2 == 0) return true;
  *error = "give an even number";
  return false;
}
std::string AbslUnparseFlag(const Even& even) { return std::to_string(even.number); }

}  // namespace gpipe::command

ABSL_FLAG(gpipe::command::Even, test_rows, {}, "Rows.");
ABSL_FLAG(int64_t, test_epochs, 3,
          "Epochs of training, said in so many words that the line is "
          "longer than eighty columns.");
ABSL_FLAG(std::optional<int64_t>, test_chunks, std::nullopt, "Default: the scale's.");
ABSL_FLAG(std::string, test_name, "", "A name.");
ABSL_FLAG(bool, test_resume, false, "Go on.");

namespace gpipe::command {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

constexpr char kUsage[] =
    "What it does. It is said in so many words that the line is longer than eighty columns.\n\n"
    "  program --test_epochs=7 --test_name=a_long_name_without_an_end --test_chunks=8 "
    "--test_resume";

class CommandLineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::SetFlag(&FLAGS_test_epochs, 3);
    absl::SetFlag(&FLAGS_test_chunks, std::nullopt);
    absl::SetFlag(&FLAGS_test_name, "");
    absl::SetFlag(&FLAGS_test_resume, false);
  }

  Request read(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "program");
    return read_flags(static_cast<int>(arguments.size()), arguments.data(), kUsage, version_text(),
                      out_);
  }
  auto refuses(std::vector<const char*> arguments) {
    return [this, arguments] { read(arguments); };
  }

  std::ostringstream out_;
};

TEST_F(CommandLineTest, SaysWhatATypeOfThisProjectSays) {
  EXPECT_THAT(refuses({"--test_rows=3"}),
              ThrowsMessage<std::invalid_argument>(StrEq("--test_rows=3: give an even number")));
  EXPECT_EQ(read({"--test_rows=4"}), Request::kRun);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_rows).number, 4);
}

TEST_F(CommandLineTest, SaysWhyAFlagIsAbsent) {
  FlagSet absent;
  absent.absent("model", "there is one model only");
  absent.absent("test_epochs", "it is there");
  for (const std::vector<const char*>& words : std::vector<std::vector<const char*>>{
           {"program", "--model=x"}, {"program", "--model", "x"}}) {
    EXPECT_THAT(
        [&] { read_flags(static_cast<int>(words.size()), words.data(), "", "", out_, absent); },
        ThrowsMessage<std::invalid_argument>(HasSubstr(
            "there is no flag --model: there is one model only; --help lists the flags")));
  }
  // A flag that the program has is accepted.
  const std::vector<const char*> epochs = {"program", "--test_epochs=7"};
  EXPECT_EQ(read_flags(2, epochs.data(), "", "", out_, absent), Request::kRun);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_epochs), 7);
}

TEST_F(CommandLineTest, SetsFlagsInAllForms) {
  EXPECT_EQ(read({"--test_epochs=7", "--test_name", "a b", "--test_resume"}), Request::kRun);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_epochs), 7);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_name), "a b");
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_resume));
  EXPECT_EQ(read({"-test_epochs", "8", "--notest_resume"}), Request::kRun);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_epochs), 8);
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_resume));
  EXPECT_EQ(read({}), Request::kRun);
}

TEST_F(CommandLineTest, MistakesSayWhatWasMeant) {
  EXPECT_THAT(refuses({"--test_epoch=7"}),
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("--test_epoch"), HasSubstr("did you mean --test_epochs?"))));
  EXPECT_THAT(refuses({"--test-epochs=7"}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean --test_epochs?")));
  EXPECT_THAT(refuses({"test_epochs=7"}),
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("'test_epochs=7' is not a flag"), HasSubstr("--test_epochs?"))));
  EXPECT_THAT(refuses({"\u2013test_epochs=7"}),
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("its dash"), HasSubstr("--test_epochs?"))));
  EXPECT_THAT(refuses({"--quux"}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("--help lists the flags")));
  EXPECT_THAT(
      refuses({"--test_epochs=many"}),
      ThrowsMessage<std::invalid_argument>(HasSubstr("--test_epochs=many: give a whole number")));
  EXPECT_THAT(refuses({"--test_name="}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("--test_name= has no value")));
  EXPECT_THAT(refuses({"--test_epochs=99999999999999999999"}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("a whole number")));
  EXPECT_THAT(refuses({"--test_epochs"}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("needs a value")));
  EXPECT_THROW(read({"--notest_epochs"}), std::invalid_argument);
  EXPECT_THROW(read({"--notest_resume=true"}), std::invalid_argument);
  EXPECT_THROW(read({"-"}), std::invalid_argument);
  EXPECT_THROW(read({"--"}), std::invalid_argument);
  EXPECT_THROW(read({""}), std::invalid_argument);
}

TEST_F(CommandLineTest, ANumberMayBeLeftOut) {
  EXPECT_EQ(read({}), Request::kRun);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_chunks), std::nullopt);
  EXPECT_EQ(read({"--test_chunks=0"}), Request::kRun);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_chunks), 0);
  EXPECT_THAT(
      refuses({"--test_chunks=many"}),
      ThrowsMessage<std::invalid_argument>(HasSubstr("--test_chunks=many: give a whole number")));
  EXPECT_THAT(refuses({"--test_chunks="}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("--test_chunks= has no value")));
}

TEST_F(CommandLineTest, HelpHasUsageAndFlagsIn80Columns) {
  EXPECT_EQ(read({"--help"}), Request::kNothing);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("What it does."), HasSubstr("--test_epochs  (3)"),
                                HasSubstr("Go on.")));
  std::istringstream lines(out_.str());
  for (std::string line; std::getline(lines, line);) EXPECT_THAT(line, SizeIs(Le(80u)));
}

TEST_F(CommandLineTest, HelpShowsTheDefaultsThatAProgramHasSet) {
  absl::SetFlag(&FLAGS_test_epochs, 12);
  EXPECT_EQ(read({"--test_epochs=5", "--help"}), Request::kNothing);
  EXPECT_THAT(out_.str(), HasSubstr("--test_epochs  (12)"));
}

// A command's own settings, as one of several commands of a program has them.
TEST_F(CommandLineTest, ACommandHasFlagsOfItsOwn) {
  int64_t rows = 8;
  std::optional<double> speed;
  bool fast = true;
  std::vector<int64_t> sizes;
  FlagSet flags;
  flags.add("rows", rows, 1, 16, "How many.");
  flags.add("speed", speed, 0, 10, "How fast.");
  flags.add("fast", fast, "Whether it is fast.");
  const auto by_length = [](const std::string& text) {
    if (text == "none") throw std::invalid_argument("--sizes=none: give some");
    return std::vector<int64_t>{static_cast<int64_t>(text.size())};
  };
  flags.parsed("sizes", sizes, by_length, "Which sizes.", "all");
  const auto read_own = [&](std::vector<const char*> words) {
    words.insert(words.begin(), "program");
    return read_flags(static_cast<int>(words.size()), words.data(), "", "", out_, flags);
  };
  EXPECT_EQ(read_own({"--rows=16", "--speed", "2.5", "--nofast", "--sizes=abc", "--test_epochs=7"}),
            Request::kRun);
  EXPECT_EQ(rows, 16);
  EXPECT_EQ(speed, 2.5);
  EXPECT_FALSE(fast);
  EXPECT_EQ(sizes, std::vector<int64_t>{3});
  EXPECT_EQ(absl::GetFlag(FLAGS_test_epochs), 7);
  const auto refused = [&](const char* word, const std::string& why) {
    EXPECT_THAT([&] { read_own({word}); }, ThrowsMessage<std::invalid_argument>(StrEq(why)));
  };
  refused("--rows=17", "--rows=17: give a number from 1 to 16");
  refused("--rows=x", "--rows=x: give a whole number");
  refused("--speed=-1", "--speed=-1: give a number from 0 to 10");
  refused("--speed=x", "--speed=x: give a number");
  refused("--fast=x", "--fast=x: give true or false");
  refused("--sizes=none", "--sizes=none: give some");
  refused("--row=2", "there is no flag --row; did you mean --rows?");

  std::optional<double> unset;
  int64_t eight = 8;
  FlagSet again;
  again.add("rows", eight, 1, 16, "How many.");
  again.add("speed", unset, 0, 10, "How fast.");
  again.parsed("sizes", sizes, by_length, "Which sizes.", "all");
  const std::vector<const char*> help = {"program", "--help"};
  EXPECT_EQ(read_flags(2, help.data(), "", "", out_, again), Request::kNothing);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("--rows  (8)\n"), HasSubstr("--speed\n"),
                                HasSubstr("--sizes  (all)\n"), HasSubstr("--test_epochs  (")));

  FlagSet twice;
  twice.add("test_epochs", eight, "Also a flag of the program.");
  EXPECT_THAT([&] { read_flags(2, help.data(), "", "", out_, twice); },
              ThrowsMessage<std::logic_error>(HasSubstr("rename it")));
}

TEST(QuotedForShell, OnlyWhereItIsNeeded) {
  EXPECT_EQ(quoted_for_shell("--devices=cuda:0,cuda:1"), "--devices=cuda:0,cuda:1");
  EXPECT_EQ(quoted_for_shell("--json=my file"), "'--json=my file'");
  EXPECT_EQ(quoted_for_shell("it's"), "'it'\\''s'");
  EXPECT_EQ(quoted_for_shell(""), "''");
}

TEST_F(CommandLineTest, VersionTellsTheBuild) {
  EXPECT_EQ(read({"--version"}), Request::kNothing);
  EXPECT_THAT(out_.str(), HasSubstr(describe_build()));
  EXPECT_THAT(describe_build(), HasSubstr(is_optimized() ? "with optim" : "without optim"));
}

}  // namespace
}  // namespace gpipe::command
