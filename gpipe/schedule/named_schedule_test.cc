#include "gpipe/schedule/named_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe {
namespace {

using ::testing::HasSubstr;

std::string complaint(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(NamedSchedules, EachMakesItsShape) {
  for (const NamedSchedule& named : named_schedules()) {
    SCOPED_TRACE(named.name);
    const Schedule schedule = schedule_by_name(named.name, 4, 5);
    EXPECT_EQ(schedule.stages(), 4);
    EXPECT_EQ(schedule.micro_batches(), 5);
    schedule.check(placement_by_name(named.name, 4));
    bool split = false;
    for (const std::vector<Action>& actions : schedule.table()) {
      for (const Action& action : actions) split |= action.kind == ActionKind::kInputGradient;
    }
    EXPECT_EQ(split, named.split);
    EXPECT_EQ(schedule_by_name(named.name)(4, 5), schedule) << "as a generator";
    EXPECT_THAT(schedule_names(), HasSubstr(named.name));
    EXPECT_FALSE(named.summary.empty());
  }
}

TEST(NamedSchedules, StagesPerWorker) {
  NamedScheduleOptions options;
  options.stages_per_worker = 3;
  EXPECT_EQ(schedule_by_name("interleaved", 6, 4, options), interleaved(2, 3, 4));
  EXPECT_EQ(placement_by_name("zb-interleaved", 6, options), Placement::loop(2, 3));
}

TEST(NamedSchedules, UnknownNamesGetTheOneThatWasMeant) {
  EXPECT_THAT(complaint([] { schedule_by_name("zb_v"); }), HasSubstr("did you mean zb-v?"));
  EXPECT_THAT(complaint([] { schedule_by_name("ZBV"); }), HasSubstr("did you mean zb-v?"));
  EXPECT_THAT(complaint([] { schedule_by_name("1F1B"); }), HasSubstr("did you mean 1f1b?"));
  EXPECT_THAT(complaint([] { schedule_by_name("interleave"); }),
              HasSubstr("did you mean interleaved?"));
  // The message also suggests a schedule for a single word of its name, and for a name from papers.
  EXPECT_THAT(complaint([] { schedule_by_name("bfs"); }), HasSubstr("did you mean looped-bfs?"));
  EXPECT_THAT(complaint([] { schedule_by_name("h2"); }), HasSubstr("did you mean zb-h2?"));
  EXPECT_THAT(complaint([] { schedule_by_name("afab"); }), HasSubstr("did you mean fill-drain?"));
  EXPECT_THAT(complaint([] { schedule_by_name("AFAB"); }), HasSubstr("did you mean fill-drain?"));
  EXPECT_THAT(complaint([] { schedule_by_name("breadth first"); }),
              HasSubstr("did you mean looped-bfs?"));
  EXPECT_THAT(complaint([] { schedule_by_name("DAPPLE"); }), HasSubstr("did you mean 1f1b?"));
  EXPECT_THAT(complaint([] { schedule_by_name("zero bubble"); }), HasSubstr("did you mean zb-h1?"));
  const std::string unknown = complaint([] { schedule_by_name("what"); });
  EXPECT_THAT(unknown, HasSubstr("there is no schedule 'what'; there are gpipe, fill-drain"));
  EXPECT_THAT(complaint([] { placement_by_name("loop", 4); }),
              HasSubstr("takes the name of a schedule, got 'loop'; that placement is "
                        "Placement::loop(...)"));
  EXPECT_THAT(complaint([] { schedule_by_name(""); }), HasSubstr("there is no schedule ''"));
}

// Each schedule refuses costs that are not numbers, also if it has just been made with other costs.
// Generators that search look for a finished schedule by its costs, and a NaN once matched
// whichever schedule was kept.
TEST(NamedSchedules, EachRefusesCostsThatNoActionHasWhateverWasMadeBefore) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::pair<const char*, double& (*)(GeneratorCosts&)> kCosts[] = {
      {"stage.forward", [](GeneratorCosts& c) -> double& { return c.stage.forward; }},
      {"stage.backward", [](GeneratorCosts& c) -> double& { return c.stage.backward; }},
      {"stage.input_gradient", [](GeneratorCosts& c) -> double& { return c.stage.input_gradient; }},
      {"stage.weight_gradient",
       [](GeneratorCosts& c) -> double& { return c.stage.weight_gradient; }},
      {"transfer", [](GeneratorCosts& c) -> double& { return c.transfer; }}};
  for (const NamedSchedule& named : named_schedules()) {
    // DualPipeV searches if there are few micro-batches, so both cases are tested.
    for (const int64_t micro_batches : {2, 5}) {
      schedule_by_name(named.name, 4, micro_batches);
      for (const auto& [cost, of] : kCosts) {
        for (const double value : {std::nan(""), kInfinity, -kInfinity, -1.0}) {
          SCOPED_TRACE(named.name + ": " + cost + " " + std::to_string(value));
          NamedScheduleOptions options;
          of(options.costs) = value;
          const auto refused =
              HasSubstr(cost + std::string(" must be finite and at least 0, got "));
          EXPECT_THAT(complaint([&] { schedule_by_name(named.name, 4, micro_batches, options); }),
                      refused);
          EXPECT_THAT(complaint([&] { placement_by_name(named.name, 4, options); }), refused);
        }
      }
    }
  }
  using Generator = Schedule (*)(int64_t, int64_t, const GeneratorCosts&);
  for (const Generator make : {zb_h2, zb_v, v_half, v_min, dualpipe_v}) {
    for (const int64_t micro_batches : {2, 5}) {
      make(2, micro_batches, {});
      GeneratorCosts costs;
      costs.stage.backward = std::nan("");
      EXPECT_THAT(complaint([&] { make(2, micro_batches, costs); }), HasSubstr("got nan"));
    }
  }
}

TEST(NamedSchedules, WrongOptionsSayTheNearestThatWork) {
  NamedScheduleOptions three;
  three.stages_per_worker = 3;
  EXPECT_THAT(complaint([&] { schedule_by_name("interleaved", 8, 4, three); }),
              HasSubstr("got 8 stages; take 6 or 9 stages, or 2 or 4 stages per worker"));
  EXPECT_THAT(complaint([] { schedule_by_name("zb-v", 7, 4); }),
              HasSubstr("got 7 stages; take 6 or 8 stages"));
  EXPECT_THAT(complaint([] { schedule_by_name("zb-v", 1, 4); }), HasSubstr("take 2 stages"));
  EXPECT_THAT(complaint([&] { schedule_by_name("zb-v", three); }),
              HasSubstr("zb-v has 2 stages per worker, got 3; leave it out, or take "
                        "zb-interleaved"));
  EXPECT_THAT(complaint([&] { schedule_by_name("1f1b", three); }),
              HasSubstr("or take interleaved"));
  EXPECT_THAT(complaint([] { schedule_by_name("1f1b", 0, 4); }),
              HasSubstr("got 0; the least is 1"));
  EXPECT_THAT(complaint([] { schedule_by_name("zb-h1", 4, 0); }),
              HasSubstr("at least 1 micro-batch, got 0; the least is 1"));
  NamedScheduleOptions negative;
  negative.stages_per_worker = -1;
  EXPECT_THAT(complaint([&] { schedule_by_name("interleaved", negative); }),
              HasSubstr("at least 1 stage per worker"));
}

}  // namespace
}  // namespace gpipe
