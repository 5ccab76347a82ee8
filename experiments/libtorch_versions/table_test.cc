#include "experiments/libtorch_versions/table.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Result gives(float value) { return {"", {at::tensor({value})}}; }

Replays replays(const std::string& version, std::vector<Replay> runs) {
  return {version,
          "AVX2",
          "2.11.0-1",
          {"aten::a", "aten::b", "aten::b"},
          {"float32", "float32", "float32"},
          std::move(runs)};
}

TEST(Table, SumsUpAndShowsWhatDiffers) {
  const float next = std::nextafter(1.0F, 2.0F);
  const ComparedTable table = compare(replays("2.11.0", {{1, {gives(1), gives(1), gives(3)}}}),
                                      replays("2.15.0", {{1, {gives(1), gives(next), gives(3)}}}));
  EXPECT_EQ(table.to_markdown(false),
            "LibTorch 2.11.0 (AVX2); LibTorch 2.15.0 (AVX2).\n"
            "1 thread: 2 operators, 1 of them equal; 3 calls: 2 equal, 1 differ, 0 not comparable; "
            "0 with a result that does not repeat.\n\n"
            "| Operator | Type | 1 thread |\n|---|---|---|\n"
            "| `aten::b` | float32 | 1 of 2 differ, 1 ulp (1 of the largest), 1 of 1 elements |\n");
  EXPECT_THAT(table.to_markdown(true), HasSubstr("| `aten::a` | float32 | equal |\n"));
  EXPECT_EQ(table.to_json()["rows"].size(), 2u);
  EXPECT_EQ(table.to_json()["rows"][1]["ulp"], 1);
}

TEST(Table, NamesWhatCannotBeCompared) {
  const Result absent{"there is no such operator", {}};
  const Result restless{"", {at::Tensor()}};
  const std::string text = compare(replays("2.11.0", {{1, {gives(1), gives(1), restless}}}),
                                   replays("2.15.0", {{1, {absent, {"", {}}, gives(1)}}}))
                               .to_markdown(false);
  EXPECT_THAT(text, HasSubstr("1 of 1 not comparable: second: there is no such operator"));
  EXPECT_THAT(text,
              HasSubstr("1 of 2 not comparable: 1 and 0 tensors; 1 of 2 with a result that does "
                        "not repeat"));
}

TEST(Table, LeavesOutWhatOneCallOfAnOperatorDoesNotRepeat) {
  const Result restless{"", {at::Tensor()}};
  const std::string text = compare(replays("2.11.0", {{1, {gives(1), gives(1), restless}}}),
                                   replays("2.15.0", {{1, {gives(2), gives(2), restless}}}))
                               .to_markdown(true);
  EXPECT_THAT(text, HasSubstr("`aten::a` | float32 | 1 of 1 differ"));
  EXPECT_THAT(text, HasSubstr("`aten::b` | float32 | equal; 2 of 2 with a result that does not "
                              "repeat |"));
}

TEST(Table, ComparesNumbersOfThreads) {
  const Replays both =
      replays("2.15.0", {{1, {gives(1), gives(1), gives(1)}}, {2, {gives(1), gives(2), gives(1)}}});
  const std::string text = compare_threads(both).to_markdown(false);
  EXPECT_THAT(text, HasSubstr("| Operator | Type | 2 threads |"));
  EXPECT_THAT(text, HasSubstr("| `aten::b` | float32 | 1 of 2 differ"));
  EXPECT_THAT(text, Not(HasSubstr("aten::a")));
  EXPECT_THROW(compare_threads(replays("2.15.0", {{1, {}}})), std::invalid_argument);
}

TEST(Table, NeedsOneRecordingAndACommonNumberOfThreads) {
  Replays other = replays("2.15.0", {{1, {gives(1), gives(1), gives(1)}}});
  other.recording = "2.11.0-2";
  EXPECT_THROW(compare(replays("2.11.0", {{1, {}}}), other), std::invalid_argument);
  EXPECT_THROW(compare(replays("2.11.0", {{1, {}}}), replays("2.15.0", {{2, {}}})),
               std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
