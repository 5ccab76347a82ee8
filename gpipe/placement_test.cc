#include "gpipe/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/testing/wrong_input.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Placement, Shapes) {
  EXPECT_THAT(Placement::one_each(3).worker_of_stage(), ElementsAre(0, 1, 2));
  EXPECT_THAT(Placement::loop(2, 3).worker_of_stage(), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(Placement::v_shape(3).worker_of_stage(), ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(Placement::v_shape(1).worker_of_stage(), ElementsAre(0, 0));
  const Placement placement = Placement::of({1, 0, 1});
  EXPECT_EQ(placement.stages(), 3);
  EXPECT_EQ(placement.workers(), 2);
  EXPECT_EQ(placement.worker_of(2), 1);
  EXPECT_THAT(placement.stages_of(1), ElementsAre(0, 2));
}

TEST(Placement, ProcessesAreLeftOpenUntilGiven) {
  Placement placement = Placement::loop(2, 2);
  EXPECT_THAT(placement.process_of_worker(), IsEmpty());
  EXPECT_THAT(placement.processes({0, 1}).process_of_worker(), ElementsAre(0, 1));
  EXPECT_NE(placement, Placement::loop(2, 2));
}

TEST(Placement, TextRoundTrip) {
  for (const Placement& placement :
       {Placement::one_each(1), Placement::loop(3, 2), Placement::v_shape(4),
        Placement::v_shape(2).processes({0, 1}), Placement::of({2, 0, 1, 1})}) {
    EXPECT_EQ(Placement::from_text(placement.to_text()), placement) << placement.to_text();
  }
  EXPECT_EQ(Placement::v_shape(2).processes({0, 0}).to_text(),
            "worker_of_stage 0 1 1 0\nprocess_of_worker 0 0\n");
  EXPECT_EQ(::testing::PrintToString(Placement::v_shape(2)), "worker_of_stage 0 1 1 0\n");
  EXPECT_EQ(Placement::from_text("# by hand\r\n\n  worker_of_stage 0\t1  # two\n"),
            Placement::one_each(2));
}

using Row = testing::WrongInput<>;

Row invalid(std::string name, std::function<void()> call, std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(std::invalid_argument), std::move(parts)};
}

class PlacementWrongInput : public ::testing::TestWithParam<Row> {};

TEST_P(PlacementWrongInput, IsRefused) { testing::expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Placement, PlacementWrongInput,
    ::testing::Values(
        invalid("NoStages", [] { Placement::one_each(0); }, {"stages", "at least 1", "got 0"}),
        invalid("NoWorkers", [] { Placement::loop(0, 1); }, {"workers", "got 0"}),
        invalid("NoStagesPerWorker", [] { Placement::loop(2, -1); }, {"v must be", "got -1"}),
        invalid("TooMany", [] { Placement::loop(1 << 20, 1 << 20); }, {"at most 2^24"}),
        invalid("TooManyInAV", [] { Placement::v_shape(1 << 24); }, {"at most 2^24"}),
        invalid("Empty", [] { Placement::of({}); }, {"empty", "a worker for each stage"}),
        invalid("Negative",
                [] {
                  Placement::of({0, -1});
                },
                {"stage 1 is given to worker -1", "counted 0..1"}),
        invalid("TooLarge",
                [] {
                  Placement::of({0, 2});
                },
                {"stage 1 is given to worker 2", "none left out"}),
        invalid("Gap",
                [] {
                  Placement::of({0, 2, 0});
                },
                {"worker 1 has no stage"}),
        invalid("ProcessesOfOtherWorkers", [] { Placement::one_each(2).processes({0}); },
                {"got 1 numbers", "2 workers"}),
        invalid("GapInProcesses",
                [] {
                  Placement::one_each(3).processes({0, 2, 0});
                },
                {"process 1 has no worker"}),
        invalid("NoText", [] { Placement::from_text(""); }, {"worker_of_stage", "found 0 lines"}),
        invalid("OtherText", [] { Placement::from_text("stages 2"); },
                {"expected 'worker_of_stage <numbers>'", "found 'stages 2'"}),
        invalid("NoNumber", [] { Placement::from_text("worker_of_stage 0 x"); },
                {"found 'worker_of_stage 0 x'"}),
        invalid("NumbersTogether", [] { Placement::from_text("worker_of_stage0"); },
                {"found 'worker_of_stage0'"}),
        Row{"NoSuchStage",
            [] { Placement::one_each(2).worker_of(2); },
            typeid(std::out_of_range),
            {"no stage 2", "has 2"}},
        Row{"NoSuchWorker",
            [] { Placement::one_each(2).stages_of(-1); },
            typeid(std::out_of_range),
            {"no worker -1", "has 2"}}),
    testing::row_name);

}  // namespace
}  // namespace gpipe
