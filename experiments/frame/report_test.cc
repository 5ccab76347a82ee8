#include "experiments/frame/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

PublishedTable table() {
  PublishedTable table;
  table.title = "Accuracy: ours beside theirs";
  table.columns = {{"error", "top-1 error (%)", {"them", "others"}},
                   {"rate", "images/s", {"them"}},
                   {"speed_up", "speed-up", {}}};
  table.rows = {{"reference", {{"error", {{"others", "22"}}}}, "run by others"},
                {"plain", {{"error", {{"them", "out of memory"}}}, {"rate", {{"them", "2×"}}}}, ""},
                {"pipeline", {{"error", {{"them", "21.99±0.13"}}}}, ""},
                {"deep", {}, ""},
                {"wide", {}, ""}};
  table.ratio = "speed_up";
  table.ratio_of = "rate";
  table.reference = "plain";
  return table;
}

Outcome measured(double error, double rate) {
  Outcome outcome;
  outcome.origin = Origin::kMeasured;
  outcome.figures = {{"error", error}, {"rate", rate}};
  outcome.note = "small net";
  outcome.settings["batch_size"] = 64;
  outcome.epochs.push_back({{"loss", 0.5}});
  return outcome;
}

std::vector<Result> results() {
  Outcome stopped = measured(9.996, 1);
  stopped.origin = Origin::kInterrupted;
  stopped.note = "stopped after epoch 1 of 3";
  return {
      {"plain", measured(13.123, 200)}, {"pipeline", measured(11.256, 2558.9)}, {"deep", stopped}};
}

TEST(ThreeDigits, RoundsWithoutExponents) {
  const std::map<double, std::string> expected = {{0, "0.00"},
                                                  {0.6512, "0.651"},
                                                  {21.987, "22.0"},
                                                  {9.996, "10.0"},
                                                  {99.96, "100"},
                                                  {2558.9, "2559"},
                                                  {1e7, "10000000"},
                                                  {-1.5, "-1.50"},
                                                  {0.00123456, "0.00123"},
                                                  {1e-30, "0.000000000000"}};
  for (const auto& [value, text] : expected) EXPECT_EQ(three_digits(value), text);
  EXPECT_EQ(three_digits(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(three_digits(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(Report, TextIsATableWithThePublishedFiguresBeside) {
  Report report(table(), results());
  report.add_remark("on two cores");
  EXPECT_EQ(report.to_text(120), R"(Accuracy: ours beside theirs

                          top-1 error (%)               images/s     speed-up
experiment  origin        ours           them  others   ours  them       ours
-----------------------------------------------------------------------------
reference   published        -              -      22      -     -          -
plain       published        -  out of memory       -      -    2×          -
pipeline    published        -     21.99±0.13       -      -     -          -

plain       measured      13.1              -       -    200     -       1.00
pipeline    measured      11.3              -       -   2559     -       12.8
deep        interrupted   10.0              -       -   1.00     -          -

reference: run by others
plain, pipeline: small net
deep: stopped after epoch 1 of 3
Not run: wide: not asked for (--experiment)

on two cores
)");
}

TEST(Report, FiguresThatDoNotFitStandBelow) {
  Report report(table(), results());
  report.add_remark("a remark that is longer than the columns that there are for all of it");
  const std::string text = report.to_text(60);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 62u) << line;
  EXPECT_THAT(text, HasSubstr("images/s     speed-up\nexperiment  origin"));
  EXPECT_THAT(text, HasSubstr("\n  all of it\n"));
}

TEST(Report, JsonHasTheSameAsNumbers) {
  const Json json = Json::parse(Report(table(), results()).to_json());
  EXPECT_EQ(json["title"], "Accuracy: ours beside theirs");
  ASSERT_EQ(json["rows"].size(), 5u);
  const Json& plain = json["rows"][1];
  EXPECT_EQ(plain["figures"]["rate"]["published"]["them"], 2.0);
  EXPECT_EQ(plain["figures"]["error"]["published"]["them"], "out of memory");
  EXPECT_EQ(plain["figures"]["rate"]["published_text"]["them"], "2×");
  const Json& pipeline = json["rows"][2];
  EXPECT_EQ(pipeline["origin"], "measured");
  EXPECT_DOUBLE_EQ(pipeline["figures"]["error"]["ours"].get<double>(), 11.256);
  EXPECT_EQ(pipeline["figures"]["error"]["published"]["them"],
            Json({{"value", 21.99}, {"plus_minus", 0.13}}));
  EXPECT_EQ(pipeline["settings"]["batch_size"], 64);
  EXPECT_EQ(pipeline["epochs"][0]["loss"], 0.5);
  EXPECT_DOUBLE_EQ(pipeline["figures"]["speed_up"]["ours"].get<double>(), 2558.9 / 200);
  EXPECT_TRUE(json["rows"][3]["figures"]["speed_up"]["ours"].is_null()) << "it was interrupted";
  EXPECT_EQ(json["rows"][4]["note"], "not asked for (--experiment)");
}

TEST(Report, OnlyWhatWasMeasuredAtFullScaleIsCompared) {
  PublishedTable compared = table();
  compared.columns[1].compared_with = "them";
  bool changed = false;
  const auto ratio = [&](const char* scale) {
    Outcome outcome = measured(1, 3);
    outcome.settings["scale"] = scale;
    if (changed) outcome.settings["changed"] = "--batch_size";
    const Json json = Json::parse(Report(compared, {{"plain", outcome}}).to_json());
    return json["rows"][1]["figures"]["rate"]["compared"];
  };
  EXPECT_EQ(ratio("full"), 1.5);
  changed = true;
  EXPECT_TRUE(ratio("full").is_null());
  changed = false;
  EXPECT_TRUE(ratio("smoke").is_null());
}

// No published figure may stand beside a row of a smaller size: a toy network's 0.0143 GiB beside a
// published 20.3 would be read as a result.
TEST(Report, PublishedFiguresStandBesideRowsOfThePublishedSizeOnly) {
  PublishedTable plain = table();
  plain.rows.resize(3);
  plain.ratio.clear();
  const auto text = [&](const char* scale) {
    Outcome outcome = measured(12, 3);
    outcome.settings["scale"] = scale;
    return Report(plain, {{"pipeline", outcome}}).to_text(120);
  };
  EXPECT_THAT(text("full"), HasSubstr("pipeline    measured    12.0     21.99±0.13"));
  EXPECT_THAT(text("full"), Not(HasSubstr("pipeline    published")));
  EXPECT_THAT(text("smoke"), HasSubstr("pipeline    published      -     21.99±0.13"));
  EXPECT_THAT(text("smoke"), HasSubstr("pipeline    measured    12.0              -"));
  // If two rows have the published size, the published figure stands beside the row that has a
  // figure of ours.
  Outcome planned;
  planned.origin = planned.way = Origin::kPlanned;
  planned.figures["error"] = 5;
  Outcome simulated;
  simulated.origin = simulated.way = Origin::kSimulated;
  simulated.figures["rate"] = 7;
  const std::string both =
      Report(plain, {{"plain", simulated}, {"plain", planned}, {"plain", measured(1, 2)}})
          .to_text(120);
  EXPECT_THAT(both, HasSubstr("plain       planned     5.00  out of memory       -      -     -"));
  EXPECT_THAT(both, HasSubstr("plain       simulated      -              -       -   7.00    2×"));
  EXPECT_THAT(both, HasSubstr("plain       measured    1.00              -       -   2.00     -"));
}

// Two cores cannot make anything more than twice as fast, so such a ratio is left out and the row's
// note says why.
TEST(Report, ARatioAboveTheCoresIsLeftOut) {
  const auto measured_on = [](double rate, int cores) {
    Outcome outcome = measured(1, rate);
    if (cores > 0) outcome.settings["cores"] = cores;
    return outcome;
  };
  const Report report(table(), {{"plain", measured_on(31, 2)},
                                {"pipeline", measured_on(63, 2)},
                                {"deep", measured_on(61, 2)},
                                {"wide", measured_on(496, 0)}});
  const Json rows = Json::parse(report.to_json())["rows"];
  const auto ratio = [&](int row) { return rows[row]["figures"]["speed_up"]["ours"]; };
  EXPECT_EQ(ratio(1), 1.0);
  EXPECT_TRUE(ratio(2).is_null());
  EXPECT_THAT(rows[2]["note"].get<std::string>(),
              HasSubstr("small net; its ratio to plain is left out: it is more than 2"));
  EXPECT_DOUBLE_EQ(ratio(3).get<double>(), 61.0 / 31);
  EXPECT_DOUBLE_EQ(ratio(4).get<double>(), 16) << "on GPUs, say: there is no such bound";
}

TEST(Report, ARowThatOtherWorkDisturbedSaysSo) {
  Outcome disturbed = measured(1, 2);
  disturbed.settings["disturbed"] = true;
  EXPECT_THAT(Report(table(), {{"plain", disturbed}}).to_text(120),
              HasSubstr("plain       measured (disturbed)  "));
}

TEST(Report, NoRatioWithoutItsReference) {
  Report report(table(), {{"pipeline", measured(1, 2)}});
  EXPECT_TRUE(Json::parse(report.to_json())["rows"][2]["figures"]["speed_up"]["ours"].is_null());
}

TEST(Report, AFigureThatIsNotFiniteIsNullInJson) {
  Report report(table(), {{"pipeline", measured(std::numeric_limits<double>::quiet_NaN(), 2)}});
  EXPECT_TRUE(Json::parse(report.to_json())["rows"][2]["figures"]["error"]["ours"].is_null());
  EXPECT_THAT(report.to_text(120), HasSubstr(" nan "));
}

TEST(Report, RefusesOutcomesThatClaimWhatTheyDoNotHave) {
  const auto refuses = [](const std::string& row, Origin origin, std::map<std::string, double> own,
                          const std::string& note = "") {
    return [=] {
      Outcome outcome;
      outcome.origin = origin;
      outcome.figures = own;
      outcome.note = note;
      Report(table(), {{row, outcome}});
    };
  };
  EXPECT_THAT(refuses("plain", Origin::kMeasured, {}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("measured but has no figure")));
  EXPECT_THAT(refuses("plain", Origin::kPublished, {{"rate", 1}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("published but has a figure")));
  EXPECT_THAT(refuses("plain", Origin::kNotRun, {{"rate", 1}}, "why"),
              ThrowsMessage<std::invalid_argument>(HasSubstr("not run but has a figure")));
  EXPECT_THAT(refuses("plain", Origin::kFailed, {}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("must say why")));
  EXPECT_THAT(refuses("plain", Origin::kMeasured, {{"speed", 1}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("no column speed")));
  EXPECT_THAT(refuses("narrow", Origin::kMeasured, {{"rate", 1}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("no row narrow")));
  EXPECT_NO_THROW(refuses("plain", Origin::kFailed, {}, "out of memory")());
}

TEST(Report, ARowForEveryWayWithARatioOfItsOwn) {
  PublishedTable two = table();
  two.columns[1].compared_with = "them";
  two.columns[2] = {"speed_up", "speed-up", {"them"}, "them"};
  two.rows[2].figures["speed_up"]["them"] = "1.6×";
  const auto simulated = [](double rate) {
    Outcome outcome;
    outcome.origin = outcome.way = Origin::kSimulated;
    outcome.figures = {{"rate", rate}};
    return outcome;
  };
  Outcome refused;
  refused.way = Origin::kSimulated;
  refused.note = "no profile";
  const Report report(two, {{"plain", simulated(3)},
                            {"pipeline", measured(1, 20)},
                            {"plain", measured(1, 10)},
                            {"pipeline", simulated(4.8)},
                            {"deep", measured(1, 5)},
                            {"deep", refused}});
  EXPECT_EQ(report.to_text(120), R"(Accuracy: ours beside theirs

                        top-1 error (%)               images/s                speed-up
experiment  origin      ours           them  others   ours  them  ours/them    ours  them  ours/them
----------------------------------------------------------------------------------------------------
reference   published      -              -      22      -     -          -       -     -          -

plain       simulated      -  out of memory       -   3.00    2×       1.50    1.00     -          -
pipeline    simulated      -     21.99±0.13       -   4.80     -          -    1.60  1.6×       1.00

plain       measured    1.00              -       -   10.0     -          -    1.00     -          -
pipeline    measured    1.00              -       -   20.0     -          -    2.00     -          -
deep        measured    1.00              -       -   5.00     -          -   0.500     -          -

reference: run by others
plain, pipeline, deep: small net
Not run: deep (simulated): no profile
Not run: wide: not asked for (--experiment)
)");
  const Json json = Json::parse(report.to_json({"speed", "2019-06", "run", "here"}));
  EXPECT_EQ(json["name"], "speed");
  EXPECT_EQ(json["columns"][1]["compared_with"], "them");
  EXPECT_EQ(json["ratio"]["reference"], "plain");
  EXPECT_EQ(json["rows"][4]["origin"], "simulated");
  EXPECT_DOUBLE_EQ(json["rows"][4]["figures"]["speed_up"]["compared"].get<double>(), 1.6 / 1.6);
  EXPECT_TRUE(json["rows"][3]["figures"]["speed_up"]["compared"].is_null());
  EXPECT_EQ(json["rows"][6]["way"], "simulated");
}

TEST(Report, RefusesTwoResultsOfOneWay) {
  EXPECT_THAT(
      [] {
        Report(table(), {{"plain", measured(1, 2)}, {"plain", measured(1, 2)}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("measured twice")));
  Outcome outcome = measured(1, 2);
  outcome.way = Origin::kPlanned;
  EXPECT_THAT(
      [&] {
        Report(table(), {{"plain", outcome}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("its way is planned")));
}

TEST(Report, RefusesTablesThatContradictThemselves) {
  PublishedTable wrong = table();
  wrong.rows[0].figures["rate"]["others"] = "3";
  EXPECT_THROW(Report(wrong, {}), std::invalid_argument);
  wrong = table();
  wrong.rows[0].figures["loss"]["them"] = "3";
  EXPECT_THROW(Report(wrong, {}), std::invalid_argument);
}

TEST(Origin, EachHasAName) {
  for (const Origin origin :
       {Origin::kMeasured, Origin::kInterrupted, Origin::kFailed, Origin::kPlanned,
        Origin::kSimulated, Origin::kPublished, Origin::kNotRun}) {
    EXPECT_FALSE(to_text(origin).empty());
  }
  EXPECT_EQ(to_text(Origin::kNotRun), "not run");
}

}  // namespace
}  // namespace gpipe::experiments
