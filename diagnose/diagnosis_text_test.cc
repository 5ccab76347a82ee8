#include "diagnose/diagnosis_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Diagnosis diagnosis() {
  Diagnosis d;
  d.device = "A processor";
  d.rows = 16;
  d.workers = 2;
  d.micro_batches = 8;
  d.setup = {{3, 1}, 8, {Checkpoint::kAlways, Checkpoint::kAlways}, {"gpipe", Schedule::gpipe}};
  d.step = 0.25;
  d.plain = 0.25;
  d.ideal = 0.125;
  d.parts = {{Cause::kSmallMicroBatches, 0.0625},
             {Cause::kImbalance, 0.03125},
             {Cause::kFillAndDrain, 0.015625},
             {Cause::kRecompute, 0.03125},
             {Cause::kTransfers, 0},
             {Cause::kSharedCores, 0},
             {Cause::kOverhead, -0.015625}};
  d.cores = 2;
  d.contention = 1.25;
  d.partitions = {{{0, 2}, 0.2, 0.1, 3 << 20}, {{3, 3}, 0.1, 0.05, 1 << 20}};
  d.memory = {3 << 20, 1 << 20};
  Advice advice;
  advice.change = Change::kSeveral;
  advice.setup = {
      {2, 2}, 4, {Checkpoint::kNever, Checkpoint::kAlways}, {"1f1b", Schedule::one_f_one_b}};
  advice.setup.shared_inputs = {1};
  advice.step = 0.125;
  advice.speed_up = 2;
  advice.memory = {6 << 20, 5 << 20};
  d.advice = {advice};
  return d;
}

TEST(DiagnosisText, SaysWhatIsLostAndToWhat) {
  const std::string text = to_text(diagnosis());
  EXPECT_THAT(text, HasSubstr("16 rows in 8 micro-batches takes 250 ms"));
  EXPECT_THAT(text, HasSubstr("balance {3, 1}, chunks 8, checkpoint always, schedule gpipe"));
  EXPECT_THAT(text, HasSubstr("125 ms are lost"));
  EXPECT_THAT(text, HasSubstr("small micro-batches       62.5 ms    50%  ###############\n"));
  EXPECT_THAT(text, HasSubstr("overhead                 -15.6 ms   -12%\n"));
  EXPECT_THAT(text, HasSubstr("together                   125 ms   100%\n"));
  EXPECT_THAT(text, HasSubstr("Most is lost to small micro-batches: a sample takes longer"));
  EXPECT_THAT(text, HasSubstr("0 *              0-2         200         100          3.00\n"));
  EXPECT_THAT(text, HasSubstr("2.00 times as fast, 125 ms: chunks 4 (now 8), balance {2, 2} (now"));
  EXPECT_THAT(text, HasSubstr("{never, always}"));
  EXPECT_THAT(text, HasSubstr("6.00 MiB"));
}

TEST(DiagnosisText, SmallModelsAreInKiB) {
  Diagnosis small = diagnosis();
  for (PartitionDiagnosis& partition : small.partitions) partition.memory >>= 10;
  for (int64_t& memory : small.advice[0].memory) memory >>= 10;
  EXPECT_THAT(to_text(small), HasSubstr("memory, KiB\n"));
  EXPECT_THAT(to_text(small),
              HasSubstr("0 *              0-2         200         100          3.00\n"));
  EXPECT_THAT(to_text(small), HasSubstr("6.00 KiB"));
}

TEST(DiagnosisText, MemoryIsThatOfWorkersWhereTheseHaveSeveralPartitions) {
  Diagnosis d = diagnosis();
  EXPECT_THAT(to_text(d), HasSubstr("Memory is predicted.\n"));
  EXPECT_THAT(to_text(d), HasSubstr("most 6.00 MiB in a partition\n"));
  d.workers = 1;
  d.memory = {5 << 20};
  EXPECT_THAT(to_text(d),
              HasSubstr("for the partitions of a worker\n  together at most 5.00 MiB.\n"));
  EXPECT_THAT(to_text(d), HasSubstr("most 6.00 MiB for a worker\n"));
  d.advice.clear();
  d.memory_limit = 64 << 20;
  EXPECT_THAT(to_text(d), HasSubstr("within 64.0 MiB\n  for each worker."));
}

TEST(DiagnosisText, LinesAreNarrow) {
  Diagnosis wide = diagnosis();
  wide.advice[0].setup.balance.assign(60, 12345);
  std::istringstream lines(to_text(wide));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
  }
}

TEST(DiagnosisText, NoAdviceIsSaid) {
  Diagnosis best = diagnosis();
  best.advice.clear();
  EXPECT_THAT(to_text(best), HasSubstr("Nothing that was tried is predicted to be faster"));
  EXPECT_THAT(to_text(best), Not(HasSubstr("within")));
  best.memory_limit = 64 << 20;
  EXPECT_THAT(to_text(best), HasSubstr("64.0 MiB"));
}

TEST(DiagnosisText, ContradictionsAreSaidInsteadOfAConclusion) {
  Diagnosis d = diagnosis();
  d.warning = "The measurements contradict each other: this and that.";
  d.advice.clear();
  const std::string text = to_text(d);
  EXPECT_THAT(text, HasSubstr("WARNING: The measurements contradict each other: this and that.\n"));
  EXPECT_LT(text.find("WARNING"), text.find("A step of"));
  EXPECT_THAT(text, HasSubstr("There is no advice"));
  EXPECT_THAT(text, Not(HasSubstr("Most is lost")));
  EXPECT_THAT(text, Not(HasSubstr("Nothing that was tried")));
  EXPECT_THAT(to_text(diagnosis()), Not(HasSubstr("WARNING")));
}

TEST(DiagnosisText, NamesOfOthersAreShownOnOneLine) {
  Diagnosis d = diagnosis();
  d.setup.schedule.name = "my\norder";
  EXPECT_THAT(to_text(d), HasSubstr("schedule my\\x0aorder"));
}

TEST(DiagnosisText, NothingIsLostByAStepShorterThanTheIdeal) {
  Diagnosis d = diagnosis();
  d.step = 0.0625;
  d.parts = {{Cause::kSmallMicroBatches, -0.125}, {Cause::kSharedCores, 0.0625}};
  const std::string text = to_text(d);
  EXPECT_THAT(text, HasSubstr("Nothing is lost: the step is 62.5 ms shorter than that."));
  EXPECT_THAT(text, HasSubstr("  shared cores              62.5 ms\n"));
  EXPECT_THAT(text, HasSubstr("  together                 -62.5 ms\n"));
  EXPECT_THAT(text, Not(HasSubstr("are lost")));
  EXPECT_THAT(text, Not(HasSubstr("Most is lost")));
  EXPECT_THAT(text, Not(HasSubstr("%  ")));
  d.step = d.ideal;
  EXPECT_THAT(to_text(d), HasSubstr("Nothing is lost.\n"));
}

TEST(DiagnosisText, ImbalanceNamesThePartitionWithTheMostWork) {
  Diagnosis d = diagnosis();
  d.parts = {{Cause::kImbalance, 0.125}};
  // With its recomputes the first partition has the most to do, but imbalance does not count
  // recomputes. So the text names the second one.
  d.partitions = {{{0, 2}, 0.08, 0.06, 0}, {{3, 3}, 0.122, 0, 0}};
  d.binding = 0;
  const std::string text = to_text(d);
  EXPECT_THAT(text, HasSubstr("Most is lost to imbalance: partition 1 has more work"));
  EXPECT_THAT(text, HasSubstr("0 * "));
}

TEST(DiagnosisText, WithoutThePlainModelItSaysSo) {
  Diagnosis d = diagnosis();
  d.whole_batch = false;
  EXPECT_THAT(to_text(d), HasSubstr("the same, one\n  micro-batch after another,"));
}

TEST(DiagnosisJson, HasTheFields) {
  const auto json = nlohmann::json::parse(to_json(diagnosis()));
  EXPECT_EQ(json.at("step"), 0.25);
  EXPECT_EQ(json.at("parts").size(), 7u);
  double sum = 0;
  for (const auto& part : json.at("parts")) sum += part.at("seconds").get<double>();
  EXPECT_EQ(sum, json.at("step").get<double>() - json.at("ideal").get<double>());
  EXPECT_EQ(json.at("parts")[0].at("cause"), "small micro-batches");
  EXPECT_EQ(json.at("partitions")[0].at("last_layer"), 2);
  const auto& advice = json.at("advice")[0];
  EXPECT_EQ(advice.at("change"), "several");
  EXPECT_EQ(advice.at("setup").at("checkpoints")[0], "never");
  EXPECT_EQ(advice.at("setup").at("shared_inputs"), std::vector<int64_t>{1});
  EXPECT_EQ(advice.at("memory")[1], 5 << 20);
  EXPECT_EQ(json.at("memory")[0], 3 << 20);
  EXPECT_EQ(json.at("warning"), "");
  Diagnosis doubtful = diagnosis();
  doubtful.warning = "no";
  EXPECT_EQ(nlohmann::json::parse(to_json(doubtful)).at("warning"), "no");
}

}  // namespace
}  // namespace gpipe
