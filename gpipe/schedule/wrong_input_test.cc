// Gives every public function of the package wrong input: it must throw as its header says, and the
// message must say what was given and what to do.
#include "tools/testing/wrong_input.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/program.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/schedule/verify.h"

namespace gpipe {
namespace {

using Row = testing::WrongInput<>;
using Rows = std::vector<Row>;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr auto kForward = ActionKind::kForward;
constexpr auto kNoKind = static_cast<ActionKind>(7);

Row invalid(std::string name, std::function<void()> call, std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(std::invalid_argument), std::move(parts)};
}

Row beyond(std::string name, std::function<void()> call, std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(std::out_of_range), std::move(parts)};
}

class WrongInputTest : public ::testing::TestWithParam<Row> {};

TEST_P(WrongInputTest, IsRefused) { testing::expect_refused(GetParam()); }

// --- Action

// A row that calls Action::from_text() with `text`. `shown`: how the message quotes the text.
Row action_text(std::string name, std::string text, std::string shown) {
  std::vector<std::string> parts = {"'" + shown + "' is not an action",
                                    "expected F, B, I, W, O or L", "as in F0.3"};
  return invalid(
      std::move(name), [text] { Action::from_text(text); }, std::move(parts));
}

Row action_text(std::string name, std::string text) {
  return action_text(std::move(name), text, text);
}

Rows actions() {
  return {
      action_text("Empty", ""),
      action_text("Blank", " "),
      action_text("Dot", "."),
      action_text("LetterOnly", "F"),
      action_text("LetterAndDot", "F."),
      action_text("NoDot", "F03"),
      action_text("NoStage", "F.3"),
      action_text("NoMicroBatch", "F0."),
      action_text("NoLetter", "0.3"),
      action_text("UnknownLetter", "Q0.3"),
      action_text("SmallLetter", "f0.3"),
      action_text("TwoLetters", "FB0.3"),
      action_text("BlankInFront", " F0.3"),
      action_text("BlankBehind", "F0.3 "),
      action_text("BlankWithin", "F0 .3"),
      action_text("TwoDots", "F0..3"),
      action_text("ThreeNumbers", "F0.3.1"),
      action_text("Comma", "F0,3"),
      action_text("NegativeStage", "F-1.3"),
      action_text("NegativeMicroBatch", "F0.-3"),
      action_text("Plus", "F+1.3"),
      action_text("LeadingZeroInStage", "F00.3"),
      action_text("LeadingZeroInMicroBatch", "F0.03"),
      action_text("Hexadecimal", "F0x1.3"),
      action_text("Exponent", "F0.1e3"),
      action_text("StageOver32Bits", "F2147483648.0"),
      action_text("MicroBatchOver64Bits", "F0.99999999999999999999"),
      action_text("NulCharacter", std::string("F0.3\0", 5), "F0.3\\x00"),
      action_text("NotAscii", "F\xEF\xBC\x90.3", "F\\xef\\xbc\\x90.3"),
      action_text("VeryLong", "F0." + std::string(100000, '9'),
                  "F0." + std::string(77, '9') + "..."),
      invalid("LetterOfNoKind", [] { letter(kNoKind); },
              {"ActionKind 7", "not one of the six", "kForward"}),
      invalid("TextOfNoKind",
              [] {
                (Action{kNoKind, 0, 0}).to_text();
              },
              {"ActionKind 7", "not one of the six", "kForward"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Action, WrongInputTest, ::testing::ValuesIn(actions()), testing::row_name);

// --- Routes

Row skip_route(std::string name, int32_t source, int32_t target) {
  return invalid(std::move(name),
                 [=] {
                   Routes::create(3, {{source, target, "encoder"}});
                 },
                 {"skip 'encoder'", "from stage " + std::to_string(source),
                  "to stage " + std::to_string(target), "later stage of the 3"});
}

Row route_count(std::string name, int64_t stages) {
  return invalid(
      std::move(name), [=] { Routes::create(stages); },
      {"Routes::create", "at least 1", "at most 16777216", "got " + std::to_string(stages)});
}

Rows routes() {
  Rows rows = {
      route_count("NoStages", 0),
      route_count("NegativeStages", -1),
      route_count("LeastStages", kMin),
      route_count("MostStages", kMax),
      route_count("StagesOver32Bits", (int64_t{1} << 32) + 1),
      route_count("StagesJustOverTheLimit", (int64_t{1} << 24) + 1),
      skip_route("SkipInsideAStage", 1, 1),
      skip_route("SkipBackwards", 2, 0),
      skip_route("SkipFromANegativeStage", -1, 2),
      skip_route("SkipToTheStageBehindTheLast", 0, 3),
      skip_route("SkipFarOutside", 0, std::numeric_limits<int32_t>::max()),
      invalid("SecondSkipIsWrong",
              [] {
                Routes::create(2, {{0, 1, "good"}, {1, 0, "bad"}});
              },
              {"skip 'bad'", "later stage"}),
  };
  for (int64_t index : {int64_t{-1}, int64_t{2}, kMin, kMax}) {
    const std::string name = index == -1  ? "Negative"
                             : index == 2 ? "End"
                             : index < 0  ? "Least"
                                          : "Most";
    const std::string given = " " + std::to_string(index);
    const int64_t narrow = std::clamp<int64_t>(index, std::numeric_limits<int32_t>::min(),
                                               std::numeric_limits<int32_t>::max());
    rows.push_back(beyond("RouteId" + name,
                          [=] { Routes::create(3)[static_cast<RouteId>(narrow)]; },
                          {"no route " + std::to_string(narrow), "0..1"}));
    rows.push_back(beyond("Outgoing" + name, [=] { Routes::create(2).outgoing(index); },
                          {"no stage" + given, "0..1"}));
    rows.push_back(beyond("Incoming" + name, [=] { Routes::create(2).incoming(index); },
                          {"no stage" + given, "0..1"}));
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Routes, WrongInputTest, ::testing::ValuesIn(routes()), testing::row_name);

// --- Schedule: making one

struct Counts {
  std::string name;
  int64_t stages;
  int64_t micro_batches;
  std::string expected;
};

Rows counts() {
  const std::vector<Counts> wrong = {
      {"NoStages", 0, 1, "at least 1"},
      {"NoMicroBatches", 1, 0, "at least 1"},
      {"NegativeStages", -1, 4, "at least 1"},
      {"NegativeMicroBatches", 4, -1, "at least 1"},
      {"BothNegative", -2, -2, "at least 1"},
      {"LeastStages", kMin, 1, "at least 1"},
      {"LeastMicroBatches", 1, kMin, "at least 1"},
      {"MostStages", kMax, 1, "at most 2^24 cells"},
      {"MostMicroBatches", 1, kMax, "at most 2^24 cells"},
      {"MostOfBoth", kMax, kMax, "at most 2^24 cells"},
      {"ProductOverflows", int64_t{1} << 32, int64_t{1} << 32, "at most 2^24 cells"},
      {"JustOverTheLimit", (int64_t{1} << 24) + 1, 1, "at most 2^24 cells"},
  };
  Rows rows;
  for (const Counts& c : wrong) {
    const int64_t p = c.stages, m = c.micro_batches;
    const std::vector<std::string> parts = {c.expected, "got " + std::to_string(p),
                                            std::to_string(m)};
    rows.push_back(invalid(
        "Create" + c.name, [=] { Schedule::create(p, m, {}); }, parts));
    rows.push_back(invalid(
        "Gpipe" + c.name, [=] { Schedule::gpipe(p, m); }, parts));
    rows.push_back(invalid(
        "OneFOneB" + c.name, [=] { Schedule::one_f_one_b(p, m); }, parts));
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(ScheduleCounts, WrongInputTest, ::testing::ValuesIn(counts()),
                         testing::row_name);

Row table(std::string name, Action action, std::string given) {
  return invalid(std::move(name),
                 [=] {
                   Schedule::create(2, 3, {{}, {action}});
                 },
                 {"worker 1 has " + given, "only stages 0..1 and micro-batches 0..2"});
}

Rows schedules() {
  const Schedule schedule = Schedule::gpipe(2, 2);
  Rows rows = {
      table("StageBehindTheLast", {kForward, 2, 0}, "F2.0"),
      table("NegativeStage", {kForward, -1, 0}, "F-1.0"),
      table("MicroBatchBehindTheLast", {kForward, 0, 3}, "F0.3"),
      table("NegativeMicroBatch", {ActionKind::kBackward, 0, -1}, "B0.-1"),
      table("LargestStage", {kForward, std::numeric_limits<int32_t>::max(), 0}, "F2147483647.0"),
      invalid("NoKind",
              [] {
                Schedule::create(1, 1, {{{kNoKind, 0, 0}}});
              },
              {"ActionKind 7", "not one of the six", "kForward"}),
      invalid("OnlyOfNoKind",
              [=] {
                schedule.only({kForward, kNoKind});
              },
              {"ActionKind 7", "not one of the six", "kForward"}),
      invalid("WorkerOfAStageThatNobodyRuns", [] { Schedule::create(2, 1, {{}}).worker_of(1); },
              {"no worker runs stage 1", "stages 0..1"}),
  };
  for (int64_t index : {int64_t{-1}, int64_t{2}, kMin, kMax}) {
    const std::string name = index == -1  ? "Negative"
                             : index == 2 ? "End"
                             : index < 0  ? "Least"
                                          : "Most";
    rows.push_back(beyond("ActionsOfWorker" + name, [=] { schedule.actions(index); },
                          {"no worker " + std::to_string(index), "has 2, counted from 0"}));
    rows.push_back(invalid("WorkerOfStage" + name, [=] { schedule.worker_of(index); },
                           {"stage " + std::to_string(index), "stages 0..1"}));
  }
  rows.push_back(beyond("ActionsOfNoWorkers", [] { Schedule::create(1, 1, {}).actions(0); },
                        {"no worker 0", "has 0"}));
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Schedule, WrongInputTest, ::testing::ValuesIn(schedules()),
                         testing::row_name);

// --- Schedule::from_text

Row text(std::string name, std::string given, std::vector<std::string> parts) {
  return invalid(
      std::move(name), [given] { Schedule::from_text(given); }, std::move(parts));
}

Row no_stages(std::string name, std::string line, std::string shown) {
  return text(std::move(name), line + "\nmicro_batches 1\nworker 0: F0.0\n",
              {"line 1", "expected 'stages <number, at least 1>'", "found '" + shown + "'"});
}

Row no_stages(std::string name, std::string line) { return no_stages(std::move(name), line, line); }

Row no_micro_batches(std::string name, std::string line) {
  return text(std::move(name), "stages 1\n" + line + "\nworker 0: F0.0\n",
              {"line 2", "expected 'micro_batches <number, at least 1>'", "found '" + line + "'"});
}

Row no_worker(std::string name, std::string line) {
  return text(std::move(name), "stages 1\nmicro_batches 1\n" + line + "\n",
              {"line 3", "expected 'worker 0: <actions>'", "found '" + line + "'"});
}

Row no_action(std::string name, std::string word) {
  return text(
      std::move(name), "stages 1\nmicro_batches 1\nworker 0: F0.0 " + word + " B0.0\n",
      {"line 3", "'" + word + "' is not an action", "expected F, B, I, W, O or L", "as in F0.3"});
}

Row out_of_range(std::string name, std::string word) {
  return text(std::move(name), "stages 2\nmicro_batches 1\nworker 0: F0.0 " + word + "\n",
              {"line 3", word + " is out of range", "stages 0..1", "micro-batches 0..0"});
}

Rows texts() {
  return {
      text("Empty", "", {"line 1", "'stages <number, at least 1>'", "found the end"}),
      text("BlankLines", "\n \t\r\n", {"line 3", "'stages <number", "found the end"}),
      text("CommentsOnly", "# one\n# two", {"line 3", "'stages <number", "found the end"}),
      no_stages("OtherKey", "stage 1"),
      no_stages("CapitalKey", "Stages 1"),
      no_stages("KeyOnly", "stages"),
      no_stages("NoBlankBehindTheKey", "stages1"),
      no_stages("TabBehindTheKey", "stages\t1", "stages\\x091"),
      no_stages("Colon", "stages: 1"),
      no_stages("Zero", "stages 0"),
      no_stages("Negative", "stages -2"),
      no_stages("Plus", "stages +2"),
      no_stages("Word", "stages two"),
      no_stages("Fraction", "stages 2.5"),
      no_stages("Exponent", "stages 1e3"),
      no_stages("TwoNumbers", "stages 2 2"),
      no_stages("Over64Bits", "stages 9223372036854775808"),
      no_stages("Under64Bits", "stages -9223372036854775809"),
      no_stages("ByteOrderMark", "\xEF\xBB\xBFstages 1", "\\xef\\xbb\\xbfstages 1"),
      no_stages("NulCharacter", std::string("stages 1\0", 9), "stages 1\\x00"),
      no_stages("VeryLong", "stages " + std::string(100000, '1'),
                "stages " + std::string(73, '1') + "..."),
      no_stages("OldMacLineEnds", "stages 1\rmicro_batches 1", "stages 1\\x0dmicro_batches 1"),
      text("KeysTheOtherWayRound", "micro_batches 1\nstages 1\n", {"line 1", "'stages <number"}),
      text("StagesOnly", "stages 2\n", {"line 2", "'micro_batches <number", "found the end"}),
      no_micro_batches("MicroBatchesZero", "micro_batches 0"),
      no_micro_batches("MicroBatchesNegative", "micro_batches -1"),
      no_micro_batches("MicroBatchesHyphen", "micro-batches 1"),
      no_micro_batches("MicroBatchesBlank", "micro batches 1"),
      no_micro_batches("StagesTwice", "stages 1"),
      no_micro_batches("MicroBatchesOver64Bits", "micro_batches 99999999999999999999"),
      text("MostStages", "stages 9223372036854775807\nmicro_batches 1\n",
           {"at most 2^24 cells", "got 9223372036854775807 x 1"}),
      text("MostOfBoth", "stages 9223372036854775807\nmicro_batches 9223372036854775807\n",
           {"at most 2^24 cells", "got 9223372036854775807 x 9223372036854775807"}),
      no_worker("ActionsWithoutAWorker", "F0.0 B0.0"),
      no_worker("WorkerOne", "worker 1: F0.0"),
      no_worker("WorkerWithoutANumber", "worker: F0.0"),
      no_worker("WorkerWithoutAColon", "worker 0 F0.0"),
      no_worker("WorkerNegative", "worker -1: F0.0"),
      no_worker("WorkerWithLeadingZero", "worker 00: F0.0"),
      no_worker("WorkerWithTwoBlanks", "worker  0: F0.0"),
      no_worker("MicroBatchesTwice", "micro_batches 1"),
      text("SameWorkerTwice", "stages 1\nmicro_batches 1\nworker 0: F0.0\n\n# so\nworker 0: B0.0\n",
           {"line 6", "expected 'worker 1: <actions>'", "found 'worker 0: B0.0'"}),
      no_action("UnknownLetter", "Q0.0"),
      no_action("CommaBetween", "F0.0,B0.0"),
      no_action("NoBlankBetween", "F0.0B0.0"),
      no_action("ActionWithoutADot", "F00"),
      no_action("ActionNegative", "F-1.0"),
      no_action("ActionOver32Bits", "F0.2147483648"),
      text("VerticalTab", "stages 1\nmicro_batches 1\nworker 0: \vF0.0\n",
           {"line 3", "'\\x0bF0.0' is not an action"}),
      out_of_range("StageOutOfRange", "F2.0"),
      out_of_range("MicroBatchOutOfRange", "F1.1"),
      out_of_range("LargestMicroBatch", "F0.2147483647"),
  };
}

INSTANTIATE_TEST_SUITE_P(ScheduleText, WrongInputTest, ::testing::ValuesIn(texts()),
                         testing::row_name);

// --- Functions that take a schedule: verify, compile, simulate, draw

struct Broken {
  std::string name;
  std::string workers;  // the lines of the workers, for two stages and one micro-batch
  std::vector<std::string> parts;
};

// Each of the four functions refuses each of these schedules.
Rows broken_schedules() {
  const std::vector<Broken> broken = {
      {"NoWorkers", "", {"1 problem", "there are no actions"}},
      {"IdleWorkers", "worker 0:\nworker 1:\n", {"1 problem", "there are no actions"}},
      {"MissingForward", "worker 0: F0.0 B0.0\nworker 1: B1.0\n", {"F1.0 is missing"}},
      {"MissingBackward",
       "worker 0: F0.0 B0.0\nworker 1: F1.0\n",
       {"B1.0 is missing (or I1.0 and W1.0)"}},
      {"MissingWeightGradient",
       "worker 0: F0.0 B0.0\nworker 1: F1.0 I1.0\n",
       {"W1.0 is missing, though I1.0"}},
      {"MissingInputGradient",
       "worker 0: F0.0 B0.0\nworker 1: F1.0 W1.0\n",
       {"I1.0 is missing, though W1.0"}},
      {"WholeAndSplitBackward",
       "worker 0: F0.0 B0.0\nworker 1: F1.0 B1.0 W1.0\n",
       {"B1.0 is there beside W1.0", "either whole or split"}},
      {"Twice", "worker 0: F0.0 F0.0 B0.0\nworker 1: F1.0 B1.0\n", {"F0.0 is there twice"}},
      {"StageOnTwoWorkers",
       "worker 0: F0.0 B0.0\nworker 1: F1.0\nworker 2: B1.0\n",
       {"stage 1 is on worker 1 and on worker 2", "lives on one worker"}},
      {"BackwardFirst",
       "worker 0: B0.0 F0.0\nworker 1: F1.0 B1.0\n",
       {"B0.0", "comes before F0.0", "which it needs"}},
      {"OneWorkerInWrongOrder",
       "worker 0: F1.0 F0.0 B1.0 B0.0\n",
       {"F1.0", "comes before F0.0", "which it needs"}},
  };
  Rows rows;
  for (const Broken& b : broken) {
    const Schedule schedule = Schedule::from_text("stages 2\nmicro_batches 1\n" + b.workers);
    const Routes routes = Routes::create(2, {{0, 1, "skip"}});
    rows.push_back(invalid(
        "Verify" + b.name, [=] { schedule.verify(); }, b.parts));
    rows.push_back(invalid(
        "VerifyRoutes" + b.name, [=] { schedule.verify(routes, Sends::kBuffered); }, b.parts));
    rows.push_back(invalid(
        "Compile" + b.name, [=] { compile(schedule, routes); }, b.parts));
    rows.push_back(invalid(
        "Simulate" + b.name, [=] { simulate(schedule); }, b.parts));
    rows.push_back(invalid(
        "SimulateRoutes" + b.name, [=] { simulate(schedule, routes); }, b.parts));
    rows.push_back(invalid(
        "Draw" + b.name, [=] { draw(schedule); }, b.parts));
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(BrokenSchedule, WrongInputTest, ::testing::ValuesIn(broken_schedules()),
                         testing::row_name);

Rows verifying() {
  const Schedule schedule = Schedule::gpipe(2, 2);
  const Routes other = Routes::create(3);
  const std::vector<std::string> misfit = {"the schedule has 2 stages", "routes are for 3"};
  // This schedule deadlocks, because each worker waits for a later action of the other.
  const Schedule deadlock = Schedule::from_text(
      "stages 2\nmicro_batches 2\nworker 0: F0.0 B0.0 F0.1 B0.1\nworker 1: F1.1 B1.1 F1.0 B1.0\n");
  const std::vector<std::string> stuck = {"deadlock, even with buffered sends",
                                          "worker 0 at B0.0 waits for B1.0 of worker 1"};
  return {
      invalid(
          "VerifyRoutesOfOtherStages", [=] { schedule.verify(other); }, misfit),
      invalid(
          "CompileRoutesOfOtherStages", [=] { compile(schedule, other); }, misfit),
      invalid(
          "SimulateRoutesOfOtherStages", [=] { simulate(schedule, other); }, misfit),
      invalid("VerifyUnknownSends", [=] { schedule.verify(static_cast<Sends>(7)); },
              {"kBuffered, kRendezvous or kPostedAhead", "got 7"}),
      invalid(
          "VerifyDeadlock", [=] { deadlock.verify(); }, stuck),
      invalid(
          "CompileDeadlock", [=] { compile(deadlock, Routes::create(2)); }, stuck),
      invalid(
          "SimulateDeadlock", [=] { simulate(deadlock); }, stuck),
      invalid(
          "DrawDeadlock", [=] { draw(deadlock); }, stuck),
      // The table has as many problems as cells, but the message must not be as long: it lists the
      // first ones.
      invalid("VerifyAlmostNothingOfALargeTable",
              [] {
                Schedule::create(1024, 1024, {{{kForward, 0, 0}}}).verify();
              },
              {"1048575 problems", "F0.1 is missing", "and 1048475 more"}),
      invalid("TextOfAProgramWithNoKind",
              [] {
                Program program;
                program.workers = {{Step{{kNoKind, 0, 0}, {}, {}}}};
                program.to_text();
              },
              {"ActionKind 7", "not one of the six"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Verify, WrongInputTest, ::testing::ValuesIn(verifying()),
                         testing::row_name);

Row cost(std::string name, double given, std::string shown) {
  return invalid(std::move(name),
                 [=] {
                   simulate(Schedule::gpipe(2, 2),
                            {[=](const Action& action) {
                               return action == Action{kForward, 1, 0} ? given : 1.0;
                             },
                             nullptr});
                 },
                 {"the cost of F1.0", "finite and at least 0", "got " + shown});
}

Row transfer_cost(std::string name, double given, std::string shown) {
  return invalid(
      std::move(name),
      [=] {
        simulate(Schedule::gpipe(2, 2), {uniform_cost({}), [=](const Transfer&) { return given; }});
      },
      {"the transfer from F0.0 to F1.0", "finite and at least 0", "got " + shown});
}

Rows simulating() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kHuge = std::numeric_limits<double>::max();
  const Schedule schedule = Schedule::gpipe(2, 2);
  Rows rows = {
      cost("Negative", -1.0, "-1"),
      cost("NegativeAndSmall", -1e-9, "-1e-09"),
      cost("Infinite", kInfinity, "inf"),
      cost("MinusInfinite", -kInfinity, "-inf"),
      cost("NotANumber", kNan, "nan"),
      transfer_cost("TransferNegative", -0.5, "-0.5"),
      transfer_cost("TransferInfinite", kInfinity, "inf"),
      transfer_cost("TransferNotANumber", kNan, "nan"),
      invalid("CostsAddUpToInfinity",
              [=] {
                simulate(schedule, {uniform_cost({kHuge, 1.0}), nullptr});
              },
              {"costs up to", "more than a double holds", "larger unit"}),
      invalid("TransferCostsAddUpToInfinity",
              [=] {
                simulate(schedule,
                         {uniform_cost({kHuge / 8, 1.0}), [=](const Transfer&) { return kHuge; }});
              },
              {"costs up to", "more than a double holds"}),
      invalid("NoCost",
              [=] {
                simulate(schedule, {nullptr, nullptr});
              },
              {"SimulateOptions::action is empty", "uniform_cost"}),
      invalid("UniformCostOfNoKind",
              [] {
                uniform_cost({})({kNoKind, 0, 0});
              },
              {"ActionKind 7", "not one of the six"}),
      invalid("StageCostOfNoKind",
              [] {
                stage_costs({{}})({kNoKind, 0, 0});
              },
              {"ActionKind 7", "not one of the six"}),
      beyond("NoStageCosts",
             [=] {
               simulate(schedule, {stage_costs({}), nullptr});
             },
             {"stage of F0.0", "costs for 0 stages", "one for each"}),
      beyond("TooFewStageCosts",
             [=] {
               simulate(schedule, {stage_costs({{}}), nullptr});
             },
             {"stage of F1.0", "costs for 1 stages", "one for each"}),
      beyond("StageCostOfANegativeStage",
             [] {
               stage_costs({{}})({kForward, -1, 0});
             },
             {"stage of F-1.0", "costs for 1 stages"}),
      beyond("BubbleOfNoSimulation", [] { Simulation().bubble(0); }, {"no worker 0", "has 0"}),
  };
  for (int64_t worker : {int64_t{-1}, int64_t{2}, kMin, kMax}) {
    const std::string name = worker == -1  ? "Negative"
                             : worker == 2 ? "End"
                             : worker < 0  ? "Least"
                                           : "Most";
    rows.push_back(beyond("BubbleOfWorker" + name, [=] { simulate(schedule).bubble(worker); },
                          {"no worker " + std::to_string(worker), "has 2, counted from 0"}));
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Simulate, WrongInputTest, ::testing::ValuesIn(simulating()),
                         testing::row_name);

Rows drawing() {
  Rows rows;
  const std::vector<std::pair<std::string, int64_t>> wrong = {
      {"Zero", 0}, {"Negative", -1}, {"Least", kMin}};
  for (const auto& [name, given] : wrong) {
    const std::vector<std::pair<std::string, DrawingCosts>> costs = {
        {"forward", {given, 1, 1, 1}},
        {"backward", {1, given, 1, 1}},
        {"input_gradient", {1, 1, given, 1}},
        {"weight_gradient", {1, 1, 1, given}}};
    for (const auto& [kind, cost] : costs) {
      rows.push_back(invalid(name + "_" + kind,
                             [cost = cost] { draw(Schedule::gpipe(1, 1), cost); },
                             {"at least 1", "got", kind + " " + std::to_string(given)}));
    }
  }
  const std::vector<std::string> large = {"more than 2^28 characters", "smaller costs",
                                          "simulate()"};
  rows.push_back(invalid(
      "MostCost",
      [] {
        draw(Schedule::gpipe(1, 1), {kMax, 1, 1, 1});
      },
      large));
  rows.push_back(invalid(
      "MostOfEveryCost",
      [] {
        draw(Schedule::gpipe(2, 2), {kMax, kMax, kMax, kMax});
      },
      large));
  rows.push_back(invalid(
      "TooManyRowsAndColumns", [] { draw(Schedule::gpipe(8192, 1)); }, large));
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Draw, WrongInputTest, ::testing::ValuesIn(drawing()), testing::row_name);

// These inputs look wrong, but the functions accept them.
TEST(OddInputTest, NothingIsAnAnswer) {
  EXPECT_EQ(Simulation().bubble_ratio(), 0.0);
  EXPECT_EQ(Program().to_text(), "");
  EXPECT_EQ(Routes::create(1).to_text(), "");
  EXPECT_EQ(Schedule::create(1, 1, {}).table().size(), 0u);
  EXPECT_EQ(Schedule::gpipe(1, 1).only({}).actions(0).size(), 0u);
}

TEST(OddInputTest, CostsOfZeroTakeNoTime) {
  const Simulation run = simulate(Schedule::gpipe(2, 2), {uniform_cost({0, 0, 0, 0}), nullptr});
  EXPECT_EQ(run.makespan, 0.0);
  EXPECT_EQ(run.bubble(0), 0.0);
}

// With 16384 stages the checks end at once, because their time grows with the number of cells and
// not with the square of the number of stages.
TEST(OddInputTest, ManyStagesAreCheckedInNoTime) {
  constexpr int64_t kStages = 1 << 14;
  for (const Schedule& schedule :
       {Schedule::gpipe(kStages, 1), Schedule::one_f_one_b(kStages, 2)}) {
    EXPECT_EQ(schedule.verify().makespan, 2 * (kStages + schedule.micro_batches() - 1));
  }
}

TEST(OddInputTest, ASchedulesTextMayHaveLeadingZerosInItsCounts) {
  EXPECT_EQ(Schedule::from_text("stages 01\nmicro_batches 002\nworker 0: F0.0 F0.1 B0.1 B0.0"),
            Schedule::gpipe(1, 2));
}

}  // namespace
}  // namespace gpipe
