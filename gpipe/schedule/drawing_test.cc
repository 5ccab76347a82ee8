#include "gpipe/schedule/drawing.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/hand_written.h"

namespace gpipe {
namespace {

TEST(Drawing, Gpipe) {
  EXPECT_EQ(draw(Schedule::gpipe(1, 1)), "0: F0 B0\n");
  EXPECT_EQ(draw(Schedule::gpipe(3, 1)),
            "0: F0 .. .. .. .. B0\n"
            "1: .. F0 .. .. B0 ..\n"
            "2: .. .. F0 B0 .. ..\n");
  EXPECT_EQ(draw(Schedule::gpipe(4, 2)),
            "0: F0 F1 .. .. .. .. .. .. B1 B0\n"
            "1: .. F0 F1 .. .. .. .. B1 B0 ..\n"
            "2: .. .. F0 F1 .. .. B1 B0 .. ..\n"
            "3: .. .. .. F0 F1 B1 B0 .. .. ..\n");
  EXPECT_EQ(draw(Schedule::gpipe(2, 4)),
            "0: F0 F1 F2 F3 .. .. B3 B2 B1 B0\n"
            "1: .. F0 F1 F2 F3 B3 B2 B1 B0 ..\n");
}

TEST(Drawing, OneFOneB) {
  EXPECT_EQ(draw(Schedule::one_f_one_b(1, 1)), "0: F0 B0\n");
  EXPECT_EQ(draw(Schedule::one_f_one_b(1, 3)), "0: F0 B0 F1 B1 F2 B2\n");
  EXPECT_EQ(draw(Schedule::one_f_one_b(4, 2)),
            "0: F0 F1 .. .. .. .. .. B0 .. B1\n"
            "1: .. F0 F1 .. .. .. B0 .. B1 ..\n"
            "2: .. .. F0 F1 .. B0 .. B1 .. ..\n"
            "3: .. .. .. F0 B0 F1 B1 .. .. ..\n");
  EXPECT_EQ(draw(Schedule::one_f_one_b(3, 5)),
            "0: F0 F1 F2 .. .. B0 F3 B1 F4 B2 .. B3 .. B4\n"
            "1: .. F0 F1 .. B0 F2 B1 F3 B2 F4 B3 .. B4 ..\n"
            "2: .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 .. ..\n");
}

TEST(Drawing, BackwardOfTwoUnits) {
  EXPECT_EQ(draw(Schedule::one_f_one_b(2, 3), {1, 2}),
            "0: F0 F1 .. .. B0--- F2 B1--- .. B2---\n"
            "1: .. F0 B0--- F1 B1--- F2 B2--- .. ..\n");
}

TEST(Drawing, Halves) {
  EXPECT_EQ(draw(Schedule::gpipe(2, 3).only({ActionKind::kForward})),
            "0: F0 F1 F2 ..\n"
            "1: .. F0 F1 F2\n");
  EXPECT_EQ(draw(Schedule::gpipe(2, 3).only({ActionKind::kBackward})),
            "0: .. B2 B1 B0\n"
            "1: B2 B1 B0 ..\n");
}

TEST(Drawing, SplitBackward) {
  EXPECT_EQ(draw(testing::split_backward()),
            "0: F0 F1 .. I0 W0 I1 W1\n"
            "1: .. F0 I0 F1 I1 W0 W1\n");
}

TEST(Drawing, CopiesHaveRowsOfTheirOwn) {
  const Schedule low = Schedule::from_text(
      "stages 1\nmicro_batches 3\n"
      "worker 0: F0.0 F0.1 O0.0 F0.2 B0.2 L0.0 B0.1 B0.0\n");
  EXPECT_EQ(draw(low),
            "0: F0 F1 F2 B2 B1 B0\n"
            "O:    O0\n"
            "L:             L0\n");
  DrawingCosts slow;
  slow.offload = 2;
  slow.reload = 3;
  EXPECT_EQ(draw(low, slow),
            "0: F0 F1 .. F2 B2 B1 .. .. B0\n"
            "O:    O0---\n"
            "L:                L0------\n");
}

TEST(Drawing, StagesAreToldWhereAWorkerHasSeveral) {
  EXPECT_EQ(draw(testing::interleaved()),
            "0: F0.0 F0.1 F2.0 F2.1 .... B2.0 .... B2.1 B0.0 B0.1\n"
            "1: .... F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1 ....\n");
}

TEST(Drawing, LabelsOfSeveralWidthsStayInTheirColumns) {
  EXPECT_EQ(draw(Schedule::one_f_one_b(1, 11)),
            "0: F0  B0  F1  B1  F2  B2  F3  B3  F4  B4  F5  B5  F6  B6  F7  B7  F8  B8  F9  B9  "
            "F10 B10\n");
  const std::string tall = draw(Schedule::gpipe(11, 1).only({ActionKind::kForward}));
  EXPECT_EQ(tall.substr(0, 36), " 0: F0 .. .. .. .. .. .. .. .. .. ..");
  EXPECT_EQ(tall.substr(tall.size() - 37), "10: .. .. .. .. .. .. .. .. .. .. F0\n");
}

TEST(Drawing, WrongInputThrows) {
  EXPECT_THROW(draw(Schedule::gpipe(2, 2), {0}), std::invalid_argument);
  EXPECT_THROW(draw(Schedule::gpipe(2, 2), {1, -1}), std::invalid_argument);
  EXPECT_THROW(draw(Schedule::create(1, 1, {})), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe
