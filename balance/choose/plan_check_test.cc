#include "balance/choose/plan_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balance/choose/plan_search.h"
#include "balance/choose/profiled_schedule.h"
#include "balance/step/explain.h"
#include "balance/testing/irregular_profile.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/sequential.h"

namespace gpipe::balance {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

// Two layers of 1 s forward and 2 s backward.
Profile two_layers() {
  Profile profile;
  profile.batch_rows = 1;
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

// The plan's values are counted by hand. Device 0 runs F0.0 and F0.1. Device 1 runs F1.0, B1.0,
// F1.1 and B1.1 from 1 s to 7 s. Then device 0 runs B0.1 until 9 s.
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

TEST(PlanCheck, RefusesHalfASchedule) {
  PipelinePlan plan = by_hand();
  plan.schedule = by_hand().schedule.only({ActionKind::kForward});
  EXPECT_THAT([&] { check_plan(plan, two_layers(), kTwo, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("has no backwards; a step needs")));
  plan.schedule = by_hand().schedule.only({ActionKind::kBackward});
  EXPECT_THAT([&] { check_plan(plan, two_layers(), kTwo, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("has no forwards; a step needs")));
}

TEST(PlanCheck, ChecksTheProfileBeforeItsSums) {
  Profile profile = two_layers();
  profile.layers[1].forward = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT([&] { check_plan(by_hand(), profile, kTwo, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("check_plan: the profile's ")));
}

TEST(PlanCheck, FindsWhatIsCountedByHand) {
  const PlanProof proof = check_plan(by_hand(), two_layers(), kTwo, {});
  EXPECT_THAT(proof.problems, IsEmpty());
  EXPECT_TRUE(proof.deadlock_free);
  EXPECT_TRUE(proof.ascending);
  EXPECT_DOUBLE_EQ(proof.step, 9);
  EXPECT_THAT(proof.live, ElementsAre(2228, 178));
}

// A plan with this many cells must be checked quickly. A check that adds up all cells for each
// action would take minutes.
TEST(PlanCheck, AWorkerMayHoldManyCells) {
  constexpr int32_t kStages = 64;
  constexpr int32_t kMicroBatches = 1024;
  std::vector<Action> actions;
  for (int32_t i = 0; i < kMicroBatches; ++i) {
    for (int32_t j = 0; j < kStages; ++j) actions.push_back({ActionKind::kForward, j, i});
  }
  for (int32_t i = 0; i < kMicroBatches; ++i) {
    for (int32_t j = kStages; j-- > 0;) actions.push_back({ActionKind::kBackward, j, i});
  }
  PipelinePlan plan;
  plan.rows = plan.chunks = kMicroBatches;
  plan.balance.assign(kStages, 1);
  plan.checkpoints.assign(kStages, Checkpoint::kNever);
  plan.schedule_name = "search";
  plan.schedule = Schedule::create(kStages, kMicroBatches, {actions});
  Profile profile;
  profile.batch_rows = 1;
  profile.input = 10;
  for (int k = 0; k < kStages; ++k) {
    LayerProfile layer;
    layer.kept = 100;
    layer.output = 10;
    profile.layers.push_back(layer);
  }
  const PlanProof proof = check_plan(plan, profile, std::vector<double>(kMicroBatches, 1.0), {});
  EXPECT_THAT(proof.live, ElementsAre(int64_t{kStages} * kMicroBatches * 110));
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
  EXPECT_THAT(problems([](PipelinePlan& p) { p.lower_bound = 8; }),
              HasSubstr("lower_bound: it is 6.5"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.devices[1].live = 100; }),
              HasSubstr("devices[1].live: with this balance, checkpoints and schedule device 1 "
                        "holds 178 bytes, the plan says 100"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.devices[0].live = p.devices[0].limit = 2000; }),
              HasSubstr("device 0 needs 2228 bytes of 2000"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.devices[0].reserved = 5000; }),
              HasSubstr("devices[0].reserved: the plan says 5000"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.devices[0].predicted = 5000; }),
              HasSubstr("devices[0].predicted: "));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.checkpoints[0] = Checkpoint::kAlways; }),
              HasSubstr("a step takes 10 s"));
  EXPECT_THAT(problems([](PipelinePlan& p) { p.schedule = Schedule::gpipe(2, 2); }),
              HasSubstr("device 1 holds 328 bytes"));
}

TEST(PlanCheck, TracesAreReplayed) {
  MemoryTrace trace;
  trace.devices = 2;
  constexpr auto kParameters = MemoryUse::kParameters;
  trace.blocks = {{100, 0, kParameters}, {50, 0}, {10, 1, kParameters}};
  trace.events = {{0, 0, false}, {0, 0, true}, {1, 0, false}, {2, 0, false}};
  PipelinePlan plan = by_hand();
  for (const std::vector<Action>& actions : plan.schedule.table()) {
    for (const Action& action : actions) trace.turns.push_back({Turn::Kind::kAction, action});
  }
  constexpr int64_t kSegment = 2 << 20;  // the smallest segment of the allocator
  plan.devices = {{2 * kSegment, 100, kSegment}, {2 * kSegment, 10, kSegment}};
  const PlanProof proof = check_plan(plan, two_layers(), kTwo, {}, &trace);
  EXPECT_THAT(proof.problems, IsEmpty());
  EXPECT_THAT(proof.traced_live, ElementsAre(100, 10));
  EXPECT_THAT(proof.reserved, ElementsAre(kSegment, kSegment));
  plan.devices[0].live = 101;
  EXPECT_THAT(check_plan(plan, two_layers(), kTwo, {}, &trace).problems,
              ElementsAre(HasSubstr("device 0 holds 100 bytes, the plan says 101")));
  plan.devices[0].live = 100;
  plan.devices[1].reserved += 512;
  EXPECT_THAT(check_plan(plan, two_layers(), kTwo, {}, &trace).problems,
              ElementsAre(HasSubstr("devices[1].reserved: the allocator reserves 2097152")));
  plan.devices[1].reserved -= 512;
  std::swap(trace.turns[0], trace.turns[1]);
  EXPECT_THAT(check_plan(plan, two_layers(), kTwo, {}, &trace).problems,
              ElementsAre(HasSubstr("trace has other actions on device 0")));
  std::swap(trace.turns[0], trace.turns[1]);
  trace.turns.push_back({Turn::Kind::kAction, {ActionKind::kForward, 99, 0}});
  EXPECT_THAT(
      check_plan(plan, two_layers(), kTwo, {}, &trace).problems,
      ElementsAre(HasSubstr("schedule: the memory plan's trace has an action of stage 99")));
}

// A trace with the parameters of another balance is refused. A trace without parameters cannot
// confirm the balance, and the proof says so.
TEST(PlanCheck, ATraceHasTheParametersOfTheBalance) {
  PipelinePlan plan = by_hand();
  MemoryTrace trace;
  trace.devices = 2;
  for (const std::vector<Action>& actions : plan.schedule.table()) {
    for (const Action& action : actions) trace.turns.push_back({Turn::Kind::kAction, action});
  }
  plan.devices = {{0, 0, 0}, {0, 0, 0}};
  EXPECT_THAT(check_plan(plan, two_layers(), kTwo, {}, &trace).not_checked,
              Contains(HasSubstr("balance: the trace has fewer bytes of parameters")));
  trace.blocks = {{0, 0, MemoryUse::kParameters}, {20, 1, MemoryUse::kParameters}};
  EXPECT_THAT(check_plan(plan, two_layers(), kTwo, {}, &trace).problems,
              ElementsAre(HasSubstr("balance: the memory plan's trace has 0 bytes of parameters on "
                                    "device 0, the balance puts 10 there")));
  // More parameters than the balance puts on a device are accepted, because a copy of a tied weight
  // comes on top.
  trace.blocks = {{10, 0, MemoryUse::kParameters}, {30, 1, MemoryUse::kParameters}};
  EXPECT_THAT(check_plan(plan, two_layers(), kTwo, {}, &trace).problems, IsEmpty());
  EXPECT_THAT(check_plan(plan, two_layers(), kTwo, {}, &trace).not_checked,
              Contains(HasSubstr("trace: ")));
}

// Statements that the profile can confirm are compared. The others are not claimed to be checked.
TEST(PlanCheck, WhatNobodyCanDeriveIsSaid) {
  PipelinePlan plan = by_hand();
  plan.shared_inputs = {2, 1};
  Profile profile = two_layers();
  EXPECT_THAT(check_plan(plan, profile, kTwo, {}).not_checked,
              Contains(HasSubstr("shared_inputs: ")));
  profile.shared_inputs = std::vector<int64_t>{1, 2};
  const PlanProof proof = check_plan(plan, profile, kTwo, {});
  EXPECT_THAT(proof.problems, IsEmpty());
  EXPECT_THAT(proof.not_checked, Not(Contains(HasSubstr("shared_inputs"))));
  profile.shared_inputs = std::vector<int64_t>{1};
  EXPECT_THAT(check_plan(plan, profile, kTwo, {}).problems,
              ElementsAre(HasSubstr("shared_inputs: ")));
}

// The last action takes no time, but the value that it waits for arrives late. The step must end
// only then.
TEST(PlanCheck, AnEmptyActionBehindATransferIsWaitedFor) {
  Profile profile = two_layers();
  profile.layers[0].backward = 0;
  ExplainOptions machine;
  machine.latency = 0.5;
  PipelinePlan plan = by_hand();
  ExplainOptions options = machine;
  options.chunks = 2;
  options.partition_checkpoints = plan.checkpoints;
  plan.step = explain(profile, plan.balance, options).step;
  EXPECT_DOUBLE_EQ(plan.step, 1 + 0.5 + 6 + 0.5);
  const PlanProof proof = check_plan(plan, profile, kTwo, machine);
  EXPECT_DOUBLE_EQ(proof.step, plan.step);
  EXPECT_THAT(proof.problems, IsEmpty());
}

// The plan with the values that explain() predicts for it.
PipelinePlan predicted(PipelinePlan plan, const Profile& profile,
                       const ExplainOptions& machine = {}) {
  ExplainOptions options = machine;
  options.chunks = plan.chunks;
  options.partition_checkpoints = plan.checkpoints;
  options.schedule = [&](int64_t, int64_t) { return plan.schedule; };
  const Explanation explanation = explain(profile, plan.balance, options);
  plan.step = explanation.step;
  plan.lower_bound = 0;
  plan.devices.clear();
  for (const WorkerExplanation& worker : explanation.workers) {
    plan.devices.push_back({0, worker.memory, -1, worker.memory});
  }
  return plan;
}

// Stage 0 keeps 100 bytes, of which the other stage gets 50.
TEST(PlanCheck, CopiesToTheHostAreCountedByHand) {
  PipelinePlan plan = by_hand();
  plan.schedule = Schedule::from_text(
      "stages 2\nmicro_batches 2\n"
      "worker 0: F0.0 F0.1 O0.1 B0.0 L0.1 B0.1\n"
      "worker 1: F1.0 B1.0 F1.1 B1.1\n");
  ExplainOptions machine;
  machine.host_bandwidth = 50;  // O0.1 at 3 s, L0.1 from 6 s to 7 s
  const PlanProof proof = check_plan(plan, two_layers(), kTwo, machine);
  EXPECT_THAT(proof.problems, IsEmpty());
  EXPECT_DOUBLE_EQ(proof.step, 9);
  EXPECT_EQ(proof.reload_wait, 0);
  EXPECT_THAT(proof.live, ElementsAre(2228, 178)) << "before the first goes";
  machine.host_bandwidth = 25;  // O0.1 at 4 s, L0.1 from 6 s to 8 s
  const PlanProof slower = check_plan(plan, two_layers(), kTwo, machine);
  EXPECT_THAT(slower.problems, ElementsAre(HasSubstr("a step takes 10 s")));
  EXPECT_DOUBLE_EQ(slower.reload_wait, 1);
  // One stage, of whose 200 bytes 150 go: the caller gets its output. O0.0 waits from 4 s to
  // 8 s, and L0.0 ends at 20 s, 2 s behind B0.1.
  plan.rows = plan.chunks = 3;
  plan.balance = {2};
  plan.checkpoints = {Checkpoint::kNever};
  plan.schedule_name = "search";
  plan.schedule = Schedule::from_text(
      "stages 1\nmicro_batches 3\nworker 0: F0.0 F0.1 O0.0 F0.2 B0.2 L0.0 B0.1 B0.0\n");
  plan.devices.resize(1);
  const PlanProof alone = check_plan(plan, two_layers(), {1, 1, 1}, machine);
  EXPECT_THAT(alone.live, ElementsAre(2 * 20 + 2 + 7 + 3 * 1200 - 150));
  EXPECT_DOUBLE_EQ(alone.offload_wait, 4);
  EXPECT_DOUBLE_EQ(alone.reload_wait, 2);
  EXPECT_DOUBLE_EQ(alone.step, 3 * 6 + 4 + 2);
}

TEST(PlanCheck, FindsOfOffloadsWhatExplainFinds) {
  constexpr int64_t kMicroBatches = 6;
  int64_t with = 0, waiting = 0;
  for (const bool halves : {false, true}) {
    const Profile profile = testing::irregular_profile(halves);
    for (const std::string& name :
         std::vector<std::string>{"1f1b", "fill-drain", "zb-h1", "interleaved"}) {
      for (const Checkpoint mode :
           {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
        for (const double more_time : {0.0, 0.25}) {
          PipelinePlan plan;
          plan.profiled_on = profile.device;
          plan.rows = profile.batch_rows * kMicroBatches;
          plan.chunks = kMicroBatches;
          plan.balance = {2, 3, 1, 3};
          plan.checkpoints.assign(4, mode);
          plan.schedule_name = name;
          ExplainOptions machine;
          machine.host_bandwidth = 1000;
          machine.bandwidth = 10'000;
          ExplainOptions options = machine;
          options.chunks = kMicroBatches;
          options.checkpoint = mode;
          options.schedule = [&](int64_t stages, int64_t micro_batches) {
            const int64_t of_device = name == "interleaved" ? 2 : 1;
            return profiled_schedule(name, stages / of_device, of_device, micro_batches, profile,
                                     machine);
          };
          plan.schedule = offloaded_schedule(profile, plan.balance, options, more_time);
          plan = predicted(std::move(plan), profile, machine);
          SCOPED_TRACE(std::string(to_text(mode)) + "\n" + plan.schedule.to_text());
          const PlanProof proof =
              check_plan(plan, profile, std::vector<double>(kMicroBatches, 1.0), machine);
          EXPECT_THAT(proof.problems, IsEmpty());
          options.schedule = [&](int64_t, int64_t) { return plan.schedule; };
          EXPECT_NEAR(proof.reload_wait, explain(profile, plan.balance, options).reload_wait, 1e-9);
          if (more_time == 0) {
            EXPECT_NEAR(proof.reload_wait, 0, 1e-9);
            EXPECT_NEAR(proof.offload_wait, 0, 1e-9);
          }
          if (plan.schedule != without_offloads(plan.schedule)) ++with;
          if (proof.reload_wait > 1e-9) ++waiting;
        }
      }
    }
  }
  EXPECT_GT(with, 10);
  EXPECT_GT(waiting, 0);
}

TEST(PlanCheck, HalvesOfSomeLayersOnly) {
  Profile profile = two_layers();
  profile.layers[1].split = SplitBackward{1.5, 0.75, 60};
  PipelinePlan plan = by_hand();
  plan.schedule_name = "zb-h1";
  plan.schedule = zb_h1(2, 2);
  EXPECT_THAT(check_plan(predicted(plan, profile), profile, kTwo, {}).problems, IsEmpty());
}

TEST(PlanCheck, OneWorkerMayHaveAllStages) {
  PipelinePlan plan = by_hand();
  plan.schedule_name = "sequential";
  plan.schedule = sequential(2, 2);
  EXPECT_THAT(check_plan(predicted(plan, two_layers()), two_layers(), kTwo, {}).problems,
              IsEmpty());
}

// A table of another version's search is valid, even if its name gives another table today.
TEST(PlanCheck, ATableOfASearchNeedNotBeTheNamesOfToday) {
  const Profile profile = [] {
    Profile four = two_layers();
    four.layers.insert(four.layers.end(), four.layers.begin(), four.layers.begin() + 2);
    return four;
  }();
  PipelinePlan plan = by_hand();
  plan.balance = {1, 1, 1, 1};
  plan.checkpoints.assign(4, Checkpoint::kNever);
  plan.schedule_name = "v-min";
  plan.schedule = Schedule::from_text(
      "stages 4\nmicro_batches 2\n"
      "worker 0: F0.0 F3.0 B3.0 B0.0 F0.1 F3.1 B3.1 B0.1\n"
      "worker 1: F1.0 F2.0 B2.0 B1.0 F1.1 F2.1 B2.1 B1.1\n");
  const PlanProof proof = check_plan(predicted(plan, profile), profile, kTwo, {});
  EXPECT_THAT(proof.problems, IsEmpty());
  EXPECT_THAT(proof.not_checked,
              Contains(AllOf(HasSubstr("schedule_name: "), HasSubstr("v-min finds another one"))));
  // A table that is made by rules, or that is not a V, must be the one of its name.
  plan.schedule_name = "interleaved";
  EXPECT_THAT(check_plan(predicted(plan, profile), profile, kTwo, {}).problems,
              ElementsAre(HasSubstr("schedule_name, schedule: ")));
  plan.schedule_name = "v-min";
  plan.schedule = interleaved(2, 2, 2);
  EXPECT_THAT(check_plan(predicted(plan, profile), profile, kTwo, {}).problems,
              ElementsAre(HasSubstr("schedule_name, schedule: ")));
}

TEST(PlanCheck, AGuardThatTheProfileDoesNotSayIsNotChecked) {
  PipelinePlan plan = by_hand();
  plan.autocast = "bfloat16";
  Profile profile = two_layers();
  EXPECT_THAT(check_plan(plan, profile, kTwo, {}).problems,
              ElementsAre(HasSubstr("autocast: the profile was made without")));
  profile.autocast.reset();
  const PlanProof proof = check_plan(plan, profile, kTwo, {});
  EXPECT_THAT(proof.problems, IsEmpty());
  EXPECT_THAT(proof.not_checked, Contains(HasSubstr("autocast: ")));
}

TEST(PlanCheck, AProfileWithoutThePlansDeferredBatchNormsIsAProblem) {
  PipelinePlan plan = by_hand();
  plan.deferred_batch_norm = true;
  Profile profile = two_layers();
  EXPECT_THAT(check_plan(plan, profile, kTwo, {}).problems,
              ElementsAre(HasSubstr("deferred_batch_norm: ")));
  profile.deferred_batch_norm = true;
  EXPECT_THAT(check_plan(plan, profile, kTwo, {}).problems, IsEmpty());
}

TEST(PlanCheck, AMachineOutOfRangeIsRefused) {
  for (const auto& [field, change] :
       std::vector<std::pair<std::string, std::function<void(ExplainOptions&)>>>{
           {"param_scale is 1e+300", [](ExplainOptions& m) { m.param_scale = 1e300; }},
           {"param_scale is -1", [](ExplainOptions& m) { m.param_scale = -1; }},
           {"cores is -1", [](ExplainOptions& m) { m.cores = -1; }},
           {"bandwidth is -1", [](ExplainOptions& m) { m.bandwidth = -1; }},
           {"latency is -1", [](ExplainOptions& m) { m.latency = -1; }},
           {"host_bandwidth is -1", [](ExplainOptions& m) { m.host_bandwidth = -1; }},
           {"overhead is -1", [](ExplainOptions& m) { m.overhead = -1; }},
           {"contention is 0.5", [](ExplainOptions& m) { m.contention = 0.5; }}}) {
    ExplainOptions machine;
    change(machine);
    EXPECT_THAT(
        [&] { check_plan(by_hand(), two_layers(), kTwo, machine); },
        ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("check_plan: "), HasSubstr(field))));
  }
}

TEST(PlanCheck, TimesThatAreNotFiniteAreRefusedEverywhere) {
  ExplainOptions machine;
  machine.bandwidth = 1e-307;
  const auto refused = ThrowsMessage<std::invalid_argument>(
      AllOf(HasSubstr("too long to be added up"), HasSubstr("a bandwidth of 1e-307")));
  EXPECT_THAT([&] { check_plan(by_hand(), two_layers(), kTwo, machine); }, refused);
  EXPECT_THAT([&] { explain(two_layers(), {1, 1}, machine); }, refused);
  EXPECT_THAT([&] { best_balance(two_layers(), 2, machine); }, refused);
  PlanProblem problem;
  problem.devices = 2;
  problem.chunkings = {{2, kTwo, two_layers()}};
  problem.machine = machine;
  problem.progress = [](const std::string&) { FAIL() << "the search has begun"; };
  EXPECT_THAT([&] { search_plan(problem); }, refused);
  machine = {};
  machine.host_bandwidth = 1e-307;
  EXPECT_THAT(
      [&] {
        explain(two_layers(), {1, 1}, machine);
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("a host_bandwidth of 1e-307")));
}

TEST(PlanCheck, NothingIsBelowTheLowerBound) {
  // Two devices share a work of 12 s, and device 1 waits 1 s for a forward: (12 + 1) / 2.
  EXPECT_DOUBLE_EQ(step_lower_bound(two_layers(), kTwo, 2, {}), 6.5);
  // One micro-batch goes through all layers in two forwards of 1 s and two input halves of 1 s.
  // With split backwards the next layer need not wait for weight gradients.
  EXPECT_DOUBLE_EQ(step_lower_bound(two_layers(), {1}, 2, {}), 4);
  ExplainOptions one_core;
  one_core.cores = 1;
  EXPECT_DOUBLE_EQ(step_lower_bound(two_layers(), kTwo, 2, one_core), 12);
  // The heaviest layer takes 11 s for each of the two micro-batches.
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
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("the balance has 2 layers where 1 are left of the profile's 2")));
}

}  // namespace
}  // namespace gpipe::balance
