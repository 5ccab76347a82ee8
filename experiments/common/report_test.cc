#include "experiments/common/report.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace gpipe::experiments {
namespace {

Report two_rows() {
  Report report("Accuracy",
                {{"error", "error (%)", 2, {"them", "others"}}, {"rate", "img/s", 1, {}}});
  report.add({"pipeline",
              Origin::kMeasured,
              {{"error", {11.256, {{"them", "21.99±0.13"}}}}, {"rate", {250.0, {}}}},
              "small net",
              {{"batch", "64"}}});
  report.add(
      {"dataparallel", Origin::kNotRun, {{"error", {{}, {{"others", "22"}}}}}, "no GPU", {}});
  return report;
}

TEST(Report, TextIsATableWithThePublishedFiguresBeside) {
  Report report = two_rows();
  report.add_remark("on two cores");
  EXPECT_EQ(report.to_text(),
            "Accuracy\n"
            "\n"
            "experiment   | origin   | error (%) |       them | others | img/s | note\n"
            "-------------+----------+-----------+------------+--------+-------+-----\n"
            "pipeline     | measured |     11.26 | 21.99±0.13 |      - | 250.0 | small net\n"
            "dataparallel | not run  |         - |          - |     22 |     - | no GPU\n"
            "\n"
            "on two cores\n");
}

TEST(Report, JsonHasTheSame) {
  const auto json = nlohmann::json::parse(two_rows().to_json());
  EXPECT_EQ(json["title"], "Accuracy");
  ASSERT_EQ(json["rows"].size(), 2u);
  const auto& measured = json["rows"][0];
  EXPECT_EQ(measured["origin"], "measured");
  EXPECT_DOUBLE_EQ(measured["figures"]["error"]["ours"], 11.256);
  EXPECT_EQ(measured["figures"]["error"]["published"]["them"], "21.99±0.13");
  EXPECT_EQ(measured["settings"]["batch"], "64");
  const auto& missing = json["rows"][1];
  EXPECT_EQ(missing["note"], "no GPU");
  EXPECT_TRUE(missing["figures"]["error"]["ours"].is_null());
}

TEST(Report, AFigureThatIsNotFiniteIsNullInJson) {
  Report report("t", {{"loss", "loss", 2, {}}});
  report.add({"x",
              Origin::kMeasured,
              {{"loss", {std::numeric_limits<double>::quiet_NaN(), {}}}},
              "diverged",
              {}});
  EXPECT_TRUE(
      nlohmann::json::parse(report.to_json())["rows"][0]["figures"]["loss"]["ours"].is_null());
  EXPECT_NE(report.to_text().find("nan"), std::string::npos);
}

TEST(Report, RefusesRowsThatClaimWhatTheyDoNotHave) {
  Report report("t", {{"error", "error", 2, {"them"}}});
  const Figure ours{1.0, {}};
  const Figure theirs{{}, {{"them", "2"}}};
  EXPECT_THROW(report.add({"a", Origin::kMeasured, {{"error", theirs}}, "", {}}),
               std::invalid_argument);
  EXPECT_THROW(report.add({"b", Origin::kPublished, {{"error", ours}}, "", {}}),
               std::invalid_argument);
  EXPECT_THROW(report.add({"c", Origin::kNotRun, {{"error", theirs}}, "", {}}),
               std::invalid_argument)
      << "no reason given";
  EXPECT_THROW(report.add({"d", Origin::kMeasured, {{"speed", ours}}, "", {}}),
               std::invalid_argument);
  EXPECT_THROW(report.add({"e", Origin::kPublished, {{"error", {{}, {{"someone", "3"}}}}}, "", {}}),
               std::invalid_argument);
  report.add({"f", Origin::kPublished, {{"error", theirs}}, "", {}});
  EXPECT_EQ(report.rows().size(), 1u);
}

TEST(Origin, EachHasAName) {
  EXPECT_EQ(to_text(Origin::kMeasured), "measured");
  EXPECT_EQ(to_text(Origin::kPlanned), "planned");
  EXPECT_EQ(to_text(Origin::kSimulated), "simulated");
  EXPECT_EQ(to_text(Origin::kPublished), "published");
  EXPECT_EQ(to_text(Origin::kNotRun), "not run");
}

}  // namespace
}  // namespace gpipe::experiments
