#include "gpipe/schedule/offloads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/schedule/hand_written.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/testing/seed.h"

namespace gpipe {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Le;

// Each cell holds 1, and each copy takes `copy`.
SimulateOptions costs_with(double copy, StageCost cost = {}) {
  SimulateOptions costs;
  costs.action = uniform_cost(cost);
  costs.offload.bytes = [](const Action&) { return 1.0; };
  costs.offload.to_host = costs.offload.to_device = 1.0 / copy;
  return costs;
}

Schedule lowered(const Schedule& schedule, const SimulateOptions& costs, double more_time = 0.0) {
  return with_offloads(schedule, Routes::create(schedule.stages()), costs, more_time);
}

TEST(Offloads, KeepAFillDrainLow) {
  const Schedule low = lowered(Schedule::gpipe(1, 4), costs_with(1.0));
  EXPECT_EQ(low.actions(0),
            Schedule::from_text("stages 1\nmicro_batches 4\nworker 0: F0.0 F0.1 O0.0 "
                                "F0.2 O0.1 F0.3 B0.3 L0.1 B0.2 L0.0 B0.1 B0.0\n")
                .actions(0))
      << low;
  EXPECT_THAT(simulate(low, costs_with(1.0)).peak, ElementsAre(2.0));
  EXPECT_THAT(simulate(Schedule::gpipe(1, 4), costs_with(1.0)).peak, ElementsAre(4.0));
  EXPECT_THAT(low.verify().peak_live, ElementsAre(2));
}

TEST(Offloads, ALinkThatIsTooSlowIsNotUsed) {
  EXPECT_EQ(lowered(Schedule::gpipe(1, 4), costs_with(10.0)), Schedule::gpipe(1, 4));
  // One copy each way is possible, and nothing is gained by it in 1F1B's last stage.
  EXPECT_EQ(lowered(Schedule::one_f_one_b(1, 4), costs_with(0.1)), Schedule::one_f_one_b(1, 4));
}

TEST(Offloads, WhatWaitsBetweenHalvesGoes) {
  const Schedule split = Schedule::from_text(
      "stages 1\nmicro_batches 4\n"
      "worker 0: F0.0 I0.0 F0.1 I0.1 F0.2 I0.2 F0.3 I0.3 W0.0 W0.1 W0.2 W0.3\n");
  const Schedule low = lowered(split, costs_with(0.25));
  EXPECT_THAT(simulate(split, costs_with(0.25)).peak, ElementsAre(4.0));
  // At W0.0 micro-batch 1 is on its way back, and 3 has not left yet.
  EXPECT_THAT(simulate(low, costs_with(0.25)).peak, ElementsAre(3.0)) << low;
  EXPECT_NO_THROW(low.verify());
}

TEST(Offloads, OwnOnesAreLeftOut) {
  const Schedule low = lowered(Schedule::gpipe(1, 4), costs_with(1.0));
  EXPECT_EQ(without_offloads(low), Schedule::gpipe(1, 4));
  EXPECT_EQ(lowered(low, costs_with(10.0)), Schedule::gpipe(1, 4));
}

TEST(Offloads, MoreTimeMayBuyMemory) {
  const SimulateOptions costs = costs_with(1.5);
  const Schedule plain = Schedule::gpipe(1, 8);
  const double time = simulate(plain, costs).makespan;
  const Schedule free = lowered(plain, costs);
  const Schedule longer = lowered(plain, costs, 0.5);
  EXPECT_EQ(simulate(free, costs).makespan, time);
  EXPECT_GT(simulate(longer, costs).makespan, time);
  EXPECT_LE(simulate(longer, costs).makespan, 1.5 * time);
  EXPECT_LT(simulate(longer, costs).peak[0], simulate(free, costs).peak[0]);
}

// However slow the link, with time enough a worker holds no cell but the one that it runs.
TEST(Offloads, TimeEnoughMakesUpForASlowLink) {
  for (const Schedule& plain : {Schedule::gpipe(4, 16), Schedule::one_f_one_b(4, 16)}) {
    for (const double copy : {100.0, 1e6}) {
      const SimulateOptions costs = costs_with(copy);
      const Schedule low = lowered(plain, costs, 1e9);
      EXPECT_THAT(simulate(low, costs).peak, Each(1.0)) << low.to_text();
      // As much as is allowed, and no more.
      const double time = simulate(plain, costs).makespan;
      EXPECT_LE(simulate(lowered(plain, costs, 20.0), costs).makespan, 21.0 * time);
    }
  }
}

// The copies of two workers over one link take turns, so fewer cells go.
TEST(Offloads, WorkersMayShareALink) {
  SimulateOptions costs = costs_with(1.0);
  const Schedule plain = Schedule::gpipe(2, 8);
  const Simulation own = simulate(lowered(plain, costs), costs);
  costs.offload.link = {0, 0};
  const Schedule low = lowered(plain, costs);
  const Simulation shared = simulate(low, costs);
  EXPECT_EQ(shared.makespan, simulate(plain, costs).makespan);
  EXPECT_LT(*std::max_element(shared.peak.begin(), shared.peak.end()), 8.0) << low;
  EXPECT_GE(*std::max_element(shared.peak.begin(), shared.peak.end()),
            *std::max_element(own.peak.begin(), own.peak.end()));
}

// Any costs, in which each copy takes `copy` for a stage's part of the bytes.
SimulateOptions any_costs(int64_t stages, double copy, std::mt19937_64& random) {
  std::uniform_real_distribution<double> any(0.1, 3.0);
  SimulateOptions costs = costs_with(copy);
  std::vector<StageCost> of_stages;
  std::vector<double> after_forward, between_halves;
  for (int64_t j = 0; j < stages; ++j) {
    of_stages.push_back({any(random), any(random), any(random), any(random)});
    after_forward.push_back(any(random));
    between_halves.push_back(any(random));
  }
  costs.action = stage_costs(of_stages);
  costs.offload.bytes = [=](const Action& action) {
    const bool forward = action.kind == ActionKind::kForward;
    return (forward ? after_forward : between_halves)[static_cast<size_t>(action.stage)];
  };
  return costs;
}

Schedule any_schedule(int k, std::mt19937_64& random) {
  const int64_t stages = 1 + k % 4, micro_batches = 1 + k % 7;
  if (k % 3 == 0) return Schedule::gpipe(stages, micro_batches);
  if (k % 3 == 1) return zb_h2(stages, micro_batches);
  return testing::random_schedule(stages, micro_batches, testing::MicroBatchOrder::kAny, random);
}

double highest(const Simulation& run) {
  return *std::max_element(run.peak.begin(), run.peak.end());
}

TEST(Offloads, NoTimeIsSpentForNoLowerPeak) {
  std::mt19937_64 random = testing::test_random(4);
  int lower = 0, same = 0;
  for (int k = 0; k < 100; ++k) {
    const Schedule schedule = any_schedule(k, random);
    SimulateOptions costs = any_costs(
        schedule.stages(), std::uniform_real_distribution<double>(0.1, 10.0)(random), random);
    if (k % 5 == 0) costs.offload.link.assign(static_cast<size_t>(schedule.workers()), 0);
    Simulation last = simulate(schedule, costs);
    for (const double more_time : {0.0, 0.05, 0.5, 10.0}) {
      const Schedule low = lowered(schedule, costs, more_time);
      SCOPED_TRACE(::testing::Message() << more_time << " more time\n" << low.to_text());
      Simulation run = simulate(low, costs);
      EXPECT_LE(highest(run), highest(last) * (1 + 1e-9));
      if (highest(run) < highest(last) * (1 - 1e-9)) {
        ++lower;
      } else {
        ++same;
        EXPECT_LE(run.makespan, last.makespan * (1 + 1e-9));
      }
      last = std::move(run);
    }
  }
  EXPECT_GT(lower, 50);
  EXPECT_GT(same, 50);
}

// Where one worker keeps the highest peak, the other one does not wait for a lower one of its own.
TEST(Offloads, OnlyTheFullestWorkerWaits) {
  SimulateOptions costs = costs_with(8.0);
  costs.offload.bytes = [](const Action& action) { return action.stage == 0 ? 1.0 : 0.2; };
  const Schedule plain = Schedule::gpipe(2, 8);
  const std::vector<Schedule> choices =
      internal::offload_choices(plain, Routes::create(2), costs, 100.0, {}, {0.0, 100.0});
  ASSERT_GT(choices.size(), 1u);
  const Simulation low = simulate(choices.front(), costs);
  EXPECT_EQ(low.peak[1], 0.2) << choices.front().to_text();
  EXPECT_GT(low.reload_waits[1], 0.0);
  EXPECT_NEAR(low.reload_waits[0], 0.0, 1e-9) << choices.front().to_text();
  // Each choice has its worth.
  for (size_t k = 1; k < choices.size(); ++k) {
    const Simulation before = simulate(choices[k - 1], costs), run = simulate(choices[k], costs);
    EXPECT_LT(run.makespan, before.makespan);
    EXPECT_GT(run.peak[1], before.peak[1]);
  }
}

// Whatever the schedule and the costs, nothing waits, and the memory is not more.
TEST(Offloads, NoActionWaits) {
  std::mt19937_64 random = testing::test_random();
  int lower = 0;
  for (int k = 0; k < 200; ++k) {
    const Schedule schedule = any_schedule(k, random);
    SimulateOptions costs = any_costs(
        schedule.stages(), std::uniform_real_distribution<double>(0.1, 3.0)(random), random);
    if (k % 5 == 0) costs.offload.link.assign(static_cast<size_t>(schedule.workers()), 0);
    const Schedule low = lowered(schedule, costs);
    SCOPED_TRACE(low.to_text());
    EXPECT_NO_THROW(low.verify(Sends::kBuffered));
    EXPECT_EQ(without_offloads(low), schedule);
    const Simulation before = simulate(schedule, costs);
    const Simulation after = simulate(low, costs);
    EXPECT_NEAR(after.makespan, before.makespan, 1e-9);
    EXPECT_THAT(after.reload_waits, Each(DoubleNear(0.0, 1e-9)));
    EXPECT_LE(*std::max_element(after.peak.begin(), after.peak.end()),
              *std::max_element(before.peak.begin(), before.peak.end()) + 1e-9);
    lower += after.peak < before.peak;
  }
  EXPECT_GT(lower, 50);
}

// The schedule without the offload and the reload of this cell.
Schedule without(const Schedule& schedule, const Action& cell) {
  std::vector<std::vector<Action>> table = schedule.table();
  for (std::vector<Action>& actions : table) {
    actions.erase(std::remove_if(actions.begin(), actions.end(),
                                 [&](const Action& action) {
                                   return !computes(action.kind) && action.stage == cell.stage &&
                                          action.micro_batch == cell.micro_batch;
                                 }),
                  actions.end());
  }
  return Schedule::create(schedule.stages(), schedule.micro_batches(), std::move(table));
}

TEST(Offloads, NoCellGoesInVain) {
  std::mt19937_64 random = testing::test_random(2);
  int went = 0;
  for (int k = 0; k < 600; ++k) {
    const Schedule schedule = any_schedule(k, random);
    SimulateOptions costs = any_costs(
        schedule.stages(), std::uniform_real_distribution<double>(0.05, 2.0)(random), random);
    if (k % 5 == 0) costs.offload.link.assign(static_cast<size_t>(schedule.workers()), 0);
    const Schedule low = lowered(schedule, costs, k % 2 == 0 ? 0.0 : 0.3);
    const std::vector<double> peak = simulate(low, costs).peak;
    for (int64_t worker = 0; worker < low.workers(); ++worker) {
      for (const Action& action : low.actions(worker)) {
        if (action.kind != ActionKind::kOffload) continue;
        ++went;
        const auto w = static_cast<size_t>(worker);
        EXPECT_GT(simulate(without(low, action), costs).peak[w], peak[w] * (1 + 1e-9))
            << action.to_text() << " of\n"
            << low.to_text();
      }
    }
  }
  EXPECT_GT(went, 300);
}

// [stage] the most cells between their offload and their reload.
std::vector<int64_t> away(const Schedule& schedule) {
  std::vector<int64_t> most(static_cast<size_t>(schedule.stages())), now = most;
  for (const std::vector<Action>& actions : schedule.table()) {
    for (const Action& action : actions) {
      const auto stage = static_cast<size_t>(action.stage);
      if (action.kind == ActionKind::kOffload) most[stage] = std::max(most[stage], ++now[stage]);
      if (action.kind == ActionKind::kReload) --now[stage];
    }
  }
  return most;
}

TEST(Offloads, AsManyAreAwayAsMayBe) {
  const SimulateOptions costs = costs_with(0.5);
  const Schedule plain = Schedule::gpipe(2, 8);
  const Routes routes = Routes::create(2);
  const Schedule low = with_offloads(plain, routes, costs);
  ASSERT_THAT(away(low), Each(Gt(3)));
  EXPECT_EQ(with_offloads(plain, routes, costs, 0.0, away(low)), low);
  EXPECT_EQ(with_offloads(plain, routes, costs, 0.0, {0, 0}), plain);
  const Schedule some = with_offloads(plain, routes, costs, 0.0, {3, 2});
  EXPECT_THAT(away(some), ElementsAre(3, 2));
  const std::vector<double> peak = simulate(some, costs).peak;
  EXPECT_LT(peak[0], peak[1]);
  EXPECT_LT(peak[1], 8.0);
  std::mt19937_64 random = testing::test_random(3);
  for (int k = 0; k < 100; ++k) {
    const Schedule schedule = any_schedule(k, random);
    const SimulateOptions any = any_costs(schedule.stages(), 0.3, random);
    const std::vector<int64_t> most(static_cast<size_t>(schedule.stages()), k % 4);
    const Schedule limited =
        with_offloads(schedule, Routes::create(schedule.stages()), any, 0.0, most);
    EXPECT_THAT(away(limited), Each(Le(k % 4))) << limited.to_text();
  }
}

// All tables of one worker that have offloads of these cells, from the given index on.
void each_table(const std::vector<Action>& list, int32_t micro_batch, int32_t micro_batches,
                const std::function<void(const std::vector<Action>&)>& visit) {
  if (micro_batch == micro_batches) return visit(list);
  each_table(list, micro_batch + 1, micro_batches, visit);
  const auto index = [&](ActionKind kind) {
    return std::find(list.begin(), list.end(), Action{kind, 0, micro_batch}) - list.begin();
  };
  for (auto out = index(ActionKind::kForward) + 1; out <= index(ActionKind::kBackward); ++out) {
    std::vector<Action> with = list;
    with.insert(with.begin() + out, {ActionKind::kOffload, 0, micro_batch});
    for (auto back = out + 1; back <= index(ActionKind::kBackward) + 1; ++back) {
      std::vector<Action> both = with;
      both.insert(both.begin() + back, {ActionKind::kReload, 0, micro_batch});
      each_table(both, micro_batch + 1, micro_batches, visit);
    }
  }
}

// For small tables no other offloads give a lower peak in the same time.
TEST(Offloads, NoTableIsLower) {
  std::mt19937_64 random = testing::test_random(1);
  for (int k = 0; k < 8; ++k) {
    Schedule schedule = testing::random_schedule(1, 3, testing::MicroBatchOrder::kAny, random);
    std::vector<Action> whole;  // the same order, with whole backwards
    for (Action action : schedule.actions(0)) {
      if (action.kind == ActionKind::kWeightGradient) continue;
      if (action.kind == ActionKind::kInputGradient) action.kind = ActionKind::kBackward;
      whole.push_back(action);
    }
    std::uniform_real_distribution<double> any(0.3, 1.5);
    const SimulateOptions costs = costs_with(any(random), {1.0, any(random)});
    schedule = Schedule::create(1, 3, {whole});
    const double time = simulate(schedule, costs).makespan;
    double least = std::numeric_limits<double>::infinity();
    each_table(whole, 0, 3, [&](const std::vector<Action>& list) {
      const Simulation run = simulate(Schedule::create(1, 3, {list}), costs);
      if (run.makespan <= time + 1e-9) least = std::min(least, run.peak[0]);
    });
    const Schedule low = lowered(schedule, costs);
    EXPECT_EQ(simulate(low, costs).peak[0], least) << low;
  }
}

TEST(Offloads, WrongInputThrows) {
  const Routes routes = Routes::create(1);
  const Schedule schedule = Schedule::gpipe(1, 2);
  EXPECT_THROW(with_offloads(schedule, routes, {}), std::invalid_argument);
  EXPECT_THROW(with_offloads(schedule, routes, costs_with(1.0), -0.1), std::invalid_argument);
  EXPECT_THROW(with_offloads(schedule, Routes::create(2), costs_with(1.0)), std::invalid_argument);
  EXPECT_THROW(with_offloads(schedule, routes, costs_with(1.0), 0.0, {1, 1}),
               std::invalid_argument);
  SimulateOptions costs = costs_with(1.0);
  costs.offload.to_host = 0.0;
  EXPECT_THROW(simulate(schedule, costs), std::invalid_argument);
  costs = costs_with(1.0);
  costs.offload.link = {0, 1};
  EXPECT_THROW(simulate(schedule, costs), std::invalid_argument);
  costs.offload.link = {1};
  EXPECT_THROW(simulate(schedule, costs), std::invalid_argument);
  costs = costs_with(1.0);
  costs.offload.bytes = [](const Action&) { return -1.0; };
  EXPECT_THROW(simulate(schedule, costs), std::invalid_argument);
  // A half of a schedule has nothing to offload.
  const Schedule half = schedule.only({ActionKind::kForward});
  EXPECT_EQ(with_offloads(half, routes, costs_with(0.1)), half);
}

}  // namespace
}  // namespace gpipe
