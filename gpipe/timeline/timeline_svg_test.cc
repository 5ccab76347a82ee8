#include "gpipe/timeline/timeline_svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/schedule/schedule.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepTimeline step(int64_t stages, int64_t micro_batches, double seconds) {
  return to_timeline(
      simulate(Schedule::one_f_one_b(stages, micro_batches), {uniform_cost({1.0, 2.0}), {}}),
      seconds,
      [](const Action& action) { return action.kind == ActionKind::kBackward ? 0.5 : 0.0; });
}

int count(const std::string& text, const std::string& part) {
  int number = 0;
  for (size_t place = text.find(part); place != std::string::npos;
       place = text.find(part, place + 1)) {
    ++number;
  }
  return number;
}

TEST(TimelineSvg, ShowsPanelsOnOneScale) {
  const std::string svg =
      to_svg({{"measured <1>", step(2, 3, 2e-3)}, {"simulated", step(2, 3, 1e-3)}}, "1F1B & more");
  EXPECT_THAT(svg, HasSubstr("<svg xmlns"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(svg, HasSubstr("measured &lt;1&gt;: 24 ms"));
  EXPECT_THAT(svg, HasSubstr("simulated: 12 ms"));
  EXPECT_THAT(svg, HasSubstr("1F1B &amp; more"));
  EXPECT_THAT(svg, HasSubstr(">20 ms</text>"));
  EXPECT_EQ(count(svg, "worker 1</text>"), 2);
  EXPECT_THAT(svg, HasSubstr(">recompute</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">weight gradient</text>")));
  EXPECT_THAT(svg, Not(HasSubstr(">failed</text>")));
  EXPECT_EQ(count(svg, ">2</text>"), 8);  // F and B of micro-batch 2, two workers, two panels
  // A forward takes 2 ms in the first panel, and 1 ms in the second. A pixel is 24 ms / 880. A
  // width is a time less the gap of 0.4 between neighbors.
  EXPECT_EQ(count(svg, "h146.3v18"), 6);     // backwards of the first panel
  EXPECT_EQ(count(svg, "h72.9v18"), 6 + 6);  // forwards of the first, backwards of the second
  EXPECT_EQ(count(svg, "h36.3v18"), 6 + 6);  // recomputes of the first, forwards of the second
  EXPECT_EQ(count(svg, "h17.9v18"), 6);      // recomputes of the second
}

TEST(TimelineSvg, TitlesMayHoldAnything) {
  const std::string svg = to_svg({{"a\x1B[0m", step(1, 1, 1e-3)}}, "a\nb\x01");
  EXPECT_THAT(svg, HasSubstr(">a\uFFFD[0m: "));
  EXPECT_THAT(svg, HasSubstr(">a b\uFFFD</text>"));
}

TEST(TimelineSvg, StaysSmall) {
  const std::string svg = to_svg({{"large", step(4, 20000, 1e-6)}}, "large");
  EXPECT_LT(svg.size(), 20000u);
  EXPECT_THAT(svg, HasSubstr("opacity"));
  // Every worker is nearly always busy, so something is drawn for each worker.
  EXPECT_GE(count(svg, "class=\"k"), 4);
}

TEST(TimelineSvg, MarksWhatFailed) {
  StepTimeline failed = step(2, 2, 1.0);
  failed.workers[1][0].failed = true;
  EXPECT_THAT(to_svg({{"a step", failed}}, ""), HasSubstr(">failed</text>"));
}

// Kinds of time that are new come last, so that pictures without them stay the same.
TEST(TimelineSvg, ClassesKeepTheirNumbers) {
  const std::string svg = to_svg({{"a step", step(1, 1, 1.0)}}, "");
  EXPECT_THAT(svg, HasSubstr(".k4{fill:#f2a65a}.k5{fill:#e15759}.k6{fill:#c0c0c0}"));
}

TEST(TimelineSvg, OfNothingIsStillAPicture) {
  EXPECT_THAT(to_svg({}, "nothing"), HasSubstr("</svg>"));
  EXPECT_THAT(to_svg({{"empty", StepTimeline()}}, "nothing"), HasSubstr("empty: 0 ms"));
}

}  // namespace
}  // namespace gpipe
