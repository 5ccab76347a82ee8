#include "experiments/frame/program.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "command/interrupt.h"

ABSL_FLAG(int64_t, test_rows, 0, "Rows.");

namespace gpipe::experiments {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest() : cout_(std::cout.rdbuf(out_.rdbuf())), cerr_(std::cerr.rdbuf(err_.rdbuf())) {
    experiment_.table.title = "Speed";
    experiment_.table.columns = {{"rate", "images/s", {"them"}}};
    for (const char* name : {"first", "second", "third"}) {
      experiment_.table.rows.push_back({name, {}, ""});
    }
    experiment_.json = ::testing::TempDir() + "/" +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
  }
  ~ProgramTest() override {
    std::cout.rdbuf(cout_);
    std::cerr.rdbuf(cerr_);
  }

  int run(std::vector<const char*> arguments = {}) {
    arguments.insert(arguments.begin(), "program");
    return run_program(static_cast<int>(arguments.size()), arguments.data(), "Measures.",
                       [this] { return experiment_; });
  }
  void add(const std::string& name, double rate, std::function<void()> after = nullptr) {
    experiment_.variants.push_back(
        {name, Origin::kMeasured, "", [rate, after](Outcome& outcome, const RunContext&) {
           outcome.note = "tiny";
           outcome.figures["rate"] = rate;
           if (after) after();
           outcome.origin = Origin::kMeasured;
         }});
  }
  Json json() const {
    std::ifstream file(experiment_.json);
    return Json::parse(file);
  }

  std::ostringstream out_, err_;
  ExperimentRun experiment_;

 private:
  std::streambuf* cout_;
  std::streambuf* cerr_;
};

TEST_F(ProgramTest, PrintsAndWritesTheTable) {
  add("first", 1);
  add("third", 3);
  experiment_.variants.push_back({"second", Origin::kMeasured, "needs 8 devices", nullptr});
  experiment_.remarks = {"a remark"};
  EXPECT_EQ(run(), 0);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("first       measured   1.00"),
                                HasSubstr("second: needs 8 devices"), HasSubstr("a remark"),
                                HasSubstr("LibTorch"), HasSubstr("written: " + experiment_.json)));
  EXPECT_EQ(json()["rows"][2]["figures"]["rate"]["ours"], 3.0);
  EXPECT_THAT(err_.str(), IsEmpty());
}

TEST_F(ProgramTest, AVariantThatFailsKeepsWhatItReachedAndTheRestGoesOn) {
  add("first", 1, [] { throw std::runtime_error("out of memory"); });
  add("second", 2, [] { TORCH_CHECK(false, "no such kernel"); });
  add("third", 3);
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("first       failed     1.00"),
                                HasSubstr("first: failed: out of memory; tiny"),
                                HasSubstr("third       measured   3.00")));
  EXPECT_THAT(err_.str(),
              AllOf(HasSubstr("error: first: out of memory"),
                    HasSubstr("error: second: no such kernel"), Not(HasSubstr("frame #"))));
  EXPECT_EQ(json()["rows"][0]["origin"], "failed");
}

// A variant may fail after it was measured, for example because its trace cannot be written. Its
// figures must be shown all the same.
TEST_F(ProgramTest, WhatFailsAfterAMeasurementLosesNoResult) {
  experiment_.variants.push_back(
      {"first", Origin::kMeasured, "", [](Outcome& outcome, const RunContext&) {
         outcome.note = "tiny";
         outcome.figures["rate"] = 1;
         outcome.origin = Origin::kMeasured;
         throw std::runtime_error("cannot write /dev/full");
       }});
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("first       measured   1.00"),
                                HasSubstr("first: tiny; then failed: cannot write /dev/full")));
  EXPECT_THAT(err_.str(), HasSubstr("error: first: cannot write /dev/full"));
}

TEST_F(ProgramTest, MeasuredRowsRunInTurns) {
  std::vector<std::string> order;
  const auto recorded = [&order](const std::string& name, Origin way) -> RunVariant {
    return [&order, name, way](Outcome& outcome, const RunContext& context) {
      order.push_back(name + std::to_string(context.round) + "/" + std::to_string(context.rounds));
      if (name == "second" && context.round == 2) throw std::runtime_error("a lost device");
      outcome.note = "tiny";
      outcome.figures["rate"] += 1;
      outcome.origin = way;
    };
  };
  experiment_.variants.push_back(
      {"first", Origin::kMeasured, "", recorded("first", Origin::kMeasured), 3});
  experiment_.variants.push_back(
      {"second", Origin::kMeasured, "", recorded("second", Origin::kMeasured), 3});
  experiment_.variants.push_back(
      {"third", Origin::kSimulated, "", recorded("third", Origin::kSimulated)});
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(
      order, ElementsAre("third1/1", "first1/3", "second1/3", "first2/3", "second2/3", "first3/3"));
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("first       measured    3.00"),
                                HasSubstr("second      measured    1.00"),
                                HasSubstr("second: tiny; then failed: a lost device")));
}

TEST_F(ProgramTest, StoppedBetweenRoundsKeepsWhatIsMeasured) {
  for (const char* name : {"first", "second"}) {
    add(name, 1, [] { std::raise(SIGINT); });
    experiment_.variants.back().rounds = 2;
  }
  EXPECT_EQ(run(), 130);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("first       interrupted   1.00"),
                                HasSubstr("first: stopped after round 1 of 2; tiny"),
                                HasSubstr("second: stopped before it began")));
}

TEST_F(ProgramTest, ARowThatRunsOutOfMemorySaysSo) {
  add("first", 1, [] { throw std::bad_alloc(); });
  add("second", 2);
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("first: out of memory: std::bad_alloc; tiny"),
                                HasSubstr("second      measured   2.00")));
}

TEST_F(ProgramTest, TheJsonSaysWhereItComesFrom) {
  experiment_.name = "some_speed";
  experiment_.edition = "2019-06";
  add("first", 1);
  EXPECT_EQ(run({"--test_rows=7"}), 0);
  EXPECT_EQ(json()["name"], "some_speed");
  EXPECT_EQ(json()["edition"], "2019-06");
  EXPECT_EQ(json()["command"], "tools/bazel run -c opt //experiments/some_speed -- --test_rows=7");
  EXPECT_THAT(json()["environment"].get<std::string>(), HasSubstr("LibTorch"));
}

TEST_F(ProgramTest, OneRowForEveryWay) {
  add("first", 1);
  experiment_.variants.push_back({"first", Origin::kSimulated, "no profile", nullptr});
  experiment_.variants.push_back(
      {"second", Origin::kSimulated, "", [](Outcome& outcome, const RunContext&) {
         outcome.origin = Origin::kSimulated;
         outcome.figures["rate"] = 7;
       }});
  EXPECT_EQ(run(), 0);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("first       measured    1.00"),
                                HasSubstr("second      simulated   7.00"),
                                HasSubstr("\nNot run: first (simulated): no profile\n")));
}

TEST_F(ProgramTest, CtrlCStopsTheOneThatRunsAndBeginsNoOther) {
  experiment_.variants.push_back(
      {"first", Origin::kMeasured, "", [](Outcome& outcome, const RunContext& context) {
         EXPECT_FALSE(context.interrupted());
         std::raise(SIGINT);
         EXPECT_TRUE(context.interrupted());
         outcome.origin = Origin::kInterrupted;
         outcome.figures["rate"] = 1;
       }});
  add("second", 2);
  experiment_.when_stopped = "--resume goes on";
  EXPECT_EQ(run(), 130);
  EXPECT_THAT(out_.str(),
              AllOf(HasSubstr("first       interrupted   1.00"),
                    HasSubstr("second: stopped before it began"), HasSubstr("--resume goes on")));
  EXPECT_EQ(json()["rows"][0]["origin"], "interrupted");
}

// A run that is stopped in the first measured row still has the planned and simulated rows.
TEST_F(ProgramTest, WhatIsNotMeasuredRunsFirst) {
  std::string order;
  const auto cheap = [&](const char* name, Origin way) {
    experiment_.variants.push_back(
        {name, way, "", [&order, name, way](Outcome& outcome, const RunContext&) {
           order += std::string(name) + " " + to_text(way) + ", ";
           outcome.origin = way;
           outcome.figures["rate"] = 7;
         }});
  };
  add("first", 1, [&] {
    order += "first measured, ";
    std::raise(SIGINT);
  });
  cheap("first", Origin::kSimulated);
  add("second", 2);
  cheap("second", Origin::kPlanned);
  EXPECT_EQ(run(), 130);
  EXPECT_EQ(order, "first simulated, second planned, first measured, ");
  const Json rows = json()["rows"];
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0]["way"], "measured") << "the table keeps the experiment's order";
  EXPECT_EQ(rows[1]["origin"], "simulated");
  EXPECT_EQ(rows[2]["note"], "stopped before it began");
  EXPECT_EQ(rows[3]["origin"], "planned");
}

TEST_F(ProgramTest, CtrlCBeforeThereIsAnyFigureIsNotAFailure) {
  experiment_.variants.push_back(
      {"first", Origin::kMeasured, "", [](Outcome& outcome, const RunContext& context) {
         outcome.note = "tiny";
         std::raise(SIGINT);
         if (context.interrupted()) throw command::Interrupted();
       }});
  EXPECT_EQ(run(), 130);
  EXPECT_EQ(json()["rows"][0]["origin"], "not run");
  EXPECT_EQ(json()["rows"][0]["note"], "stopped before it was done; tiny");
}

TEST_F(ProgramTest, TheTableIsPrintedAlsoWhereTheJsonCannotBeWritten) {
  add("first", 1);
  experiment_.json = "/proc/nowhere/table.json";
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(out_.str(), HasSubstr("first       measured   1.00"));
  EXPECT_THAT(err_.str(), HasSubstr("/proc/nowhere"));
}

TEST_F(ProgramTest, AClosedStandardOutputIsAnErrorAndLosesNoJson) {
  add("first", 1);
  out_.setstate(std::ios::badbit);
  std::cout.setstate(std::ios::badbit);
  EXPECT_EQ(run(), 1);
  EXPECT_EQ(run({"--help"}), 1);
  std::cout.clear();
  EXPECT_THAT(err_.str(), HasSubstr("standard output"));
  EXPECT_EQ(json()["rows"][0]["origin"], "measured");
}

// The results of earlier variants are on disk before a later one crashes the process.
TEST_F(ProgramTest, ACrashLosesOnlyTheVariantThatCrashed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  add("first", 1);
  experiment_.variants.push_back(
      {"second", Origin::kMeasured, "", [](Outcome&, const RunContext&) { std::_Exit(77); }});
  add("third", 3);
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(77), "");
  EXPECT_EQ(json()["rows"][0]["origin"], "measured");
  EXPECT_EQ(json()["rows"][2]["note"], "its turn had not come");
}

TEST_F(ProgramTest, WrongUsageEndsWith2AndErrorsWith1) {
  const auto ends_with = [](const std::function<ExperimentRun()>& prepare) {
    const char* const argv[] = {"program"};
    return run_program(1, argv, "Measures.", prepare);
  };
  EXPECT_EQ(run({"--no-such-flag"}), 2);
  EXPECT_EQ(ends_with([]() -> ExperimentRun { throw std::invalid_argument("--scale=tiny"); }), 2);
  EXPECT_EQ(ends_with([]() -> ExperimentRun { TORCH_CHECK_VALUE(false, "--devices=gpu"); }), 2);
  EXPECT_EQ(ends_with([]() -> ExperimentRun { throw std::runtime_error("a damaged file"); }), 1);
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("error: --scale=tiny"), HasSubstr("--devices=gpu"),
                                HasSubstr("a damaged file")));
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("Measures."));
}

}  // namespace
}  // namespace gpipe::experiments
