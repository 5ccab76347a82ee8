#include "balance/plan_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// Two layers of 1 s forward and 2 s backward.
Profile two_layers() {
  Profile profile;
  profile.input = 1000;
  for (int k = 0; k < 2; ++k) {
    LayerProfile layer;
    layer.forward = 1;
    layer.backward = 2;
    layer.parameters = 10;
    layer.buffers = 1;
    layer.kept = 100;
    layer.workspace = 7;
    layer.output = 50;
    profile.layers.push_back(layer);
  }
  return profile;
}

// Counted by hand: F0.0 F0.1 on device 0, then F1.0 B1.0 F1.1 B1.1 on device 1 from 1 to 7, and
// B0.1 to 9.
PipelinePlan by_hand() {
  PipelinePlan plan;
  plan.rows = 2;
  plan.balance = {1, 1};
  plan.chunks = 2;
  plan.checkpoints = {Checkpoint::kNever, Checkpoint::kNever};
  plan.schedule = Schedule::one_f_one_b(2, 2);
  plan.step = 9;
  plan.lower_bound = 6;
  plan.devices = {{0, 2 * 10 + 1 + 7 + 2 * 1100, -1}, {0, 2 * 10 + 1 + 7 + 150, -1}};
  return plan;
}

const std::vector<double> kTwo = {1, 1};

TEST(PlanCheck, FindsWhatIsCountedByHand) {
  const PlanProof proof = check_plan(by_hand(), two_layers(), kTwo, {});
  EXPECT_THAT(proof.problems, IsEmpty());
  EXPECT_TRUE(proof.deadlock_free);
  EXPECT_TRUE(proof.ascending);
  EXPECT_DOUBLE_EQ(proof.step, 9);
  EXPECT_THAT(proof.live, ElementsAre(2228, 178));
}

TEST(PlanCheck, SaysWhatDoesNotHold) {
  const auto problems = [](const std::function<void(PipelinePlan&)>& change) {
    PipelinePlan plan = by_hand();
    change(plan);
    std::string text;
    for (const std::string& problem : check_plan(plan, two_layers(), kTwo, {}).problems) {
      text += problem + ". ";
    }
    return text;
  };
  EXPECT_THAT(problems([](PipelinePlan& p) { p.step = 8.9; }),
              HasSubstr("a step takes 9 s, the plan says 8.9"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.step = 6; }), HasSubstr("below the lower bound"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.lower_bound = 8; }), HasSubstr("the lower bound"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.devices[1].live = 100; }),
              HasSubstr("device 1 holds 178 bytes, the plan says 100"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.devices[0].limit = 2227; }),
              HasSubstr("device 0 needs 2228 bytes of 2227"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.devices[0].reserved = 5; }),
              HasSubstr("more than the 5 that are reserved"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.checkpoints[0] = Checkpoint::kAlways; }),
              HasSubstr("a step takes 10 s"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.schedule = Schedule::gpipe(2, 2); }),
              HasSubstr("device 1 holds 328 bytes"));
}

TEST(PlanCheck, TracesAreReplayed) {
  MemoryTrace trace;
  trace.devices = 2;
  trace.blocks = {{100, 0}, {50, 0}, {7, 1}};
  trace.events = {{0, 0, false}, {0, 0, true}, {1, 0, false}, {2, 0, false}};
  PipelinePlan plan = by_hand();
  plan.devices = {{1000, 100, 512}, {1000, 7, 512}};
  const PlanProof proof = check_plan(plan, two_layers(), kTwo, {}, &trace);
  EXPECT_THAT(proof.problems, IsEmpty());
  EXPECT_THAT(proof.traced_live, ElementsAre(100, 7));
  plan.devices[0].live = 101;
  EXPECT_THAT(check_plan(plan, two_layers(), kTwo, {}, &trace).problems,
              ElementsAre(HasSubstr("device 0 holds 100 bytes, the plan says 101")));
}

TEST(PlanCheck, NothingIsBelowTheLowerBound) {
  // Work of 12 on two devices, and device 1 waits for a forward.
  EXPECT_DOUBLE_EQ(step_lower_bound(two_layers(), kTwo, 2, {}), 6.5);
  // A micro-batch through all layers: halves of a backward let the next one go on.
  EXPECT_DOUBLE_EQ(step_lower_bound(two_layers(), {1}, 2, {}), 4);
  ExplainOptions one_core;
  one_core.cores = 1;
  EXPECT_DOUBLE_EQ(step_lower_bound(two_layers(), kTwo, 2, one_core), 12);
  // The heaviest layer.
  Profile uneven = two_layers();
  uneven.layers[1].backward = 10;
  EXPECT_DOUBLE_EQ(step_lower_bound(uneven, kTwo, 2, {}), 22);
}

TEST(PlanCheck, MistakesAreNamed) {
  const std::vector<double> one_size = {1};
  EXPECT_THAT([&one_size] { check_plan(by_hand(), two_layers(), one_size, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("1 sizes were given for 2")));
  EXPECT_THAT(
      [] {
        PipelinePlan plan = by_hand();
        plan.balance.back() = 2;
        check_plan(plan, two_layers(), kTwo, {});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("sums up to 3, but the profile has 2")));
}

}  // namespace
}  // namespace gpipe::balance
