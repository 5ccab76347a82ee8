#include "balance/step/explanation_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace gpipe::balance {
namespace {

using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kMiB = 1 << 20;

Explanation sample() {
  Explanation explanation;
  explanation.device = "Some processor of 2 cores";
  explanation.batch_rows = 4;
  explanation.chunks = 8;
  PartitionExplanation first;
  first.layers = {0, 33};
  first.forward = 0.01234;
  first.backward = 0.0249;
  first.recompute = 0.01234 * 7 / 8;
  first.parameters = 3 * kMiB / 2;
  first.memory = 456 * kMiB + kMiB / 3;
  first.sent = 18 * kMiB;
  first.busy = 0.6312;
  PartitionExplanation second;
  second.layers = {34, 1876};
  second.forward = 1.2345;
  second.backward = 4e-7;
  second.parameters = 1;
  second.memory = 12345 * kMiB;
  second.busy = 1;
  explanation.partitions = {first, second};
  explanation.binding = 1;
  explanation.step = 0.4567;
  explanation.bubble = 0.184;
  explanation.one_device = 0.745;
  explanation.speed_up = 1.631;
  return explanation;
}

TEST(ExplanationText, Golden) {
  EXPECT_EQ(to_text(sample()),
            "                            ms per micro-batch                          MiB\n"
            "part.     layers   forward  backward recompute    params    memory     sent busy\n"
            "0           0-33      12.3      24.9      10.8      1.50       456     18.0  63%\n"
            "1 *      34-1876      1234    <0.001         0    <0.001     12345        0 100%\n"
            "\n"
            "* partition 1 is busy longest: it decides how long a step takes.\n"
            "Predicted for a step of 8 micro-batches of 4 rows: 457 ms, 18% idle, 1.63 times\n"
            "  as fast as one device (745 ms, nothing recomputed).\n"
            "Profiled on: Some processor of 2 cores; all partitions compute at once.\n");
}

TEST(ExplanationText, HalvesThatWereNotMeasuredAreTold) {
  Explanation explanation = sample();
  const std::string warning =
      "\nThe halves of split backwards were not measured: each is taken as half of the\n"
      "  whole; measure the profile again.\n";
  explanation.splits = true;
  explanation.halves_measured = false;
  EXPECT_THAT(to_text(explanation), HasSubstr(warning));
  explanation.halves_measured = true;
  EXPECT_THAT(to_text(explanation), Not(HasSubstr("measure the profile again")));
  explanation.splits = false;
  explanation.halves_measured = false;
  EXPECT_THAT(to_text(explanation), Not(HasSubstr("measure the profile again")));
}

// Sizes of small partitions are in KiB, because in MiB all numbers would be 0.
TEST(ExplanationText, SmallPartitionsAreInKiB) {
  Explanation explanation = sample();
  explanation.partitions[0].parameters = 288;
  explanation.partitions[0].memory = 456 << 10;
  explanation.partitions[0].sent = 18 << 10;
  explanation.partitions[1].memory = 12 << 10;
  EXPECT_THAT(to_text(explanation), HasSubstr("                          KiB\n"));
  EXPECT_THAT(to_text(explanation), HasSubstr("      10.8     0.281       456     18.0  63%\n"));
}

TEST(ExplanationText, FitsEightyColumns) {
  Explanation explanation = sample();
  explanation.device = std::string("A processor with a rather long name, ") +
                       "as some have, of 2 cores and " + "many more words";
  explanation.chunks = 123456789;
  std::istringstream lines(to_text(explanation));
  for (std::string line; std::getline(lines, line);) EXPECT_THAT(line, SizeIs(Le(80u)));
}

TEST(ExplanationText, OneIsSingular) {
  Explanation explanation = sample();
  explanation.chunks = explanation.batch_rows = 1;
  EXPECT_THAT(to_text(explanation), HasSubstr("1 micro-batch of 1 row: 457 ms"));
}

TEST(ExplanationJson, HasAllDigits) {
  const auto json = nlohmann::json::parse(to_json(sample()));
  EXPECT_EQ(json["device"], "Some processor of 2 cores");
  EXPECT_EQ(json["balance"], nlohmann::json({34, 1843}));
  EXPECT_EQ(json["step"].get<double>(), 0.4567);
  EXPECT_EQ(json["chunks"], 8);
  EXPECT_EQ(json["binding"], 1);
  ASSERT_EQ(json["partitions"].size(), 2u);
  EXPECT_EQ(json["partitions"][1]["first_layer"], 34);
  EXPECT_EQ(json["partitions"][1]["last_layer"], 1876);
  EXPECT_EQ(json["partitions"][1]["backward"].get<double>(), 4e-7);
  EXPECT_EQ(json["partitions"][0]["memory"], 456 * kMiB + kMiB / 3);
}

}  // namespace
}  // namespace gpipe::balance
