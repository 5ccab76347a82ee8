#include "diagnose/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "diagnose/named_choices.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/default_schedule.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/sequential.h"

namespace gpipe::diagnosis {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;

const ScheduleChoice kInTurns = {"1f1b", Schedule::one_f_one_b};
const ScheduleChoice kFillDrain = {"gpipe", Schedule::gpipe};

// Costs for micro-batches of up to 16 rows. A layer takes `start` seconds for each micro-batch in
// addition to its time for each row.
Costs costs(const std::vector<double>& layers, double start = 0) {
  Costs result;
  for (int64_t rows = 1; rows <= 16; rows *= 2) {
    balance::Profile profile;
    profile.batch_rows = rows;
    profile.input = rows;
    for (const double seconds : layers) {
      balance::LayerProfile layer;
      layer.forward = seconds * static_cast<double>(rows) + start;
      layer.backward = 2 * layer.forward;
      layer.kept = 100 * rows;
      layer.output = rows;
      profile.layers.push_back(layer);
    }
    result.profiles.push_back(profile);
  }
  return result;
}

PipelineSetup setup(std::vector<int64_t> balance, int64_t chunks, Checkpoint mode,
                    const ScheduleChoice& schedule = kInTurns) {
  const size_t partitions = balance.size();
  return {std::move(balance), chunks, std::vector<Checkpoint>(partitions, mode), schedule};
}

AdviceOptions options() {
  AdviceOptions result;
  result.chunks = {1, 2, 4, 8, 16};
  result.schedules = {kInTurns, kFillDrain};
  return result;
}

std::vector<Advice> advise(const Costs& costs, const PipelineSetup& setup,
                           const AdviceOptions& options = options()) {
  return find_advice(costs, 16, setup, Machine(),
                     1.1 * model_step(costs, 16, setup, Machine()).step, options);
}

const Advice* find(const std::vector<Advice>& advice, Change change) {
  const auto found = std::find_if(advice.begin(), advice.end(), [&](const Advice& advice_item) {
    return advice_item.change == change;
  });
  return found == advice.end() ? nullptr : &*found;
}

TEST(Advice, NothingIsToBeChangedAboutTheBest) {
  EXPECT_TRUE(advise(costs({1, 1}), setup({1, 1}, 16, Checkpoint::kNever)).empty());
}

TEST(Advice, FewerMicroBatchesWhereEachIsExpensive) {
  const PipelineSetup bad = setup({1, 1}, 16, Checkpoint::kNever);
  const Costs slow = costs({1, 1}, /*start=*/4);
  const std::vector<Advice> advice = advise(slow, bad);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].change, Change::kChunks);
  // The time of a step with m micro-batches is in proportion to (m + 1) (16 / m + 4), which is
  // smallest for m = 2.
  EXPECT_EQ(advice[0].setup.chunks, 2);
  EXPECT_DOUBLE_EQ(advice[0].speed_up, (17.0 * 5) / (3 * 12));
  // The prediction is in measured seconds, which are 1.1 times the modeled ones here.
  EXPECT_DOUBLE_EQ(advice[0].step, 1.1 * 3 * 3 * 12);
}

TEST(Advice, MoreMicroBatchesWhereFillingTakesLong) {
  const std::vector<Advice> advice = advise(costs({1, 1}), setup({1, 1}, 2, Checkpoint::kNever));
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].setup.chunks, 16);
}

TEST(Advice, ABetterBalance) {
  const std::vector<Advice> advice =
      advise(costs({1, 1, 1, 1, 4}), setup({2, 3}, 16, Checkpoint::kNever));
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].change, Change::kBalance);
  EXPECT_THAT(advice[0].setup.balance, ElementsAre(4, 1));
}

TEST(Advice, LayersThatStayTogetherAreNotSeparated) {
  Costs bound = costs({1, 1, 1, 1, 4});
  bound.together = {{3, 4}};
  const std::vector<Advice> advice = advise(bound, setup({2, 3}, 16, Checkpoint::kNever));
  const Advice* balance = find(advice, Change::kBalance);
  ASSERT_NE(balance, nullptr);
  EXPECT_THAT(balance->setup.balance, ElementsAre(3, 2));
}

TEST(Advice, NoRecomputesCostMemoryThatItTells) {
  const std::vector<Advice> advice =
      advise(costs({1, 1}), setup({1, 1}, 16, Checkpoint::kAlways, kFillDrain));
  const Advice* never = find(advice, Change::kCheckpoints);
  ASSERT_NE(never, nullptr);
  EXPECT_THAT(never->setup.checkpoints, Each(Checkpoint::kNever));
  EXPECT_NEAR(never->speed_up, 4.0 / 3, 0.02);
  EXPECT_THAT(never->memory, Each(16 * (1 + 100)));
}

TEST(Advice, WithinALimitOfMemoryPartitionsGetModesOfTheirOwn) {
  // Under 1F1B the first partition holds two micro-batches, and the second holds one. So only the
  // first exceeds the limit and gets a slower mode.
  AdviceOptions limited = options();
  limited.memory_limit = 2 * (1 + 100) - 1;
  const PipelineSetup bad = setup({1, 1}, 16, Checkpoint::kAlways);
  const std::vector<Advice> advice = advise(costs({1, 1}), bad, limited);
  const Advice* modes = find(advice, Change::kCheckpoints);
  ASSERT_NE(modes, nullptr);
  EXPECT_THAT(modes->setup.checkpoints, ElementsAre(Checkpoint::kExceptLast, Checkpoint::kNever));
  for (const Advice& advice_item : advice) {
    EXPECT_LE(*std::max_element(advice_item.memory.begin(), advice_item.memory.end()),
              limited.memory_limit);
  }
  limited.memory_limit = 1;
  EXPECT_TRUE(advise(costs({1, 1}), bad, limited).empty());
}

TEST(Advice, ALimitOfMemoryIsForAWorkerWithAllOfItsPartitions) {
  AdviceOptions advice_options = options();
  advice_options.chunks = {8};
  advice_options.schedules.clear();
  const PipelineSetup bad =
      setup({1, 1, 1, 1}, 8, Checkpoint::kAlways, {"interleaved", schedule_by_name("interleaved")});
  std::vector<Advice> advice = advise(costs({1, 1, 1, 1}), bad, advice_options);
  const Advice* modes = find(advice, Change::kCheckpoints);
  ASSERT_NE(modes, nullptr);
  EXPECT_THAT(modes->setup.checkpoints, Each(Checkpoint::kNever));
  ASSERT_EQ(modes->memory.size(), 2u);
  // The limit is more than any partition takes, and less than the two partitions of the first
  // worker take together. So the first of them gets a slower mode.
  advice_options.memory_limit = modes->memory[0] - 1;
  const ModeledMemory memory = model_memory(costs({1, 1, 1, 1}), 16, modes->setup, 2);
  ASSERT_GT(advice_options.memory_limit,
            *std::max_element(memory.partitions.begin(), memory.partitions.end()));
  ASSERT_GT(advice_options.memory_limit, memory.workers[1]);
  advice = advise(costs({1, 1, 1, 1}), bad, advice_options);
  modes = find(advice, Change::kCheckpoints);
  ASSERT_NE(modes, nullptr);
  EXPECT_THAT(modes->setup.checkpoints, ElementsAre(Checkpoint::kExceptLast, Checkpoint::kNever,
                                                    Checkpoint::kNever, Checkpoint::kNever));
  for (const Advice& advice_item : advice) {
    EXPECT_THAT(advice_item.memory, Each(Le(advice_options.memory_limit)));
  }
}

TEST(Advice, AnotherScheduleWhereItSparesRecomputes) {
  // The last partition has most to do. Under 1F1B it recomputes nothing, so 1F1B is advised.
  const std::vector<Advice> advice =
      advise(costs({1, 3}), setup({1, 1}, 16, Checkpoint::kExceptLast, kFillDrain));
  const Advice* schedule = find(advice, Change::kSchedule);
  ASSERT_NE(schedule, nullptr);
  EXPECT_EQ(schedule->setup.schedule.name, "1f1b");
  EXPECT_GT(schedule->speed_up, 1.2);
}

// Options with the named schedules of a placement. The schedules are made for costs in which each
// half of a backward takes as long as a forward.
AdviceOptions named(const Placement& placement) {
  AdviceOptions result = options();
  result.schedules = named_choices(placement, {1, 2, 4, 8, 16});
  return result;
}

TEST(Advice, SplitBackwardsWhereFillingTakesLong) {
  AdviceOptions advice_options = named(Placement::one_each(4));
  advice_options.chunks = {8};
  const PipelineSetup now = setup({1, 1, 1, 1}, 8, Checkpoint::kNever);
  // 1F1B's bubble is (p - 1) (F + B), that of ZB-H1 (p - 1) (F + I - W), that of ZB-H2 (p - 1) F.
  // With equal halves ZB-H1 and ZB-H2 are equally fast, so only ZB-H1 is advised, which holds less.
  Costs each = costs({1, 1, 1, 1});
  std::vector<Advice> advice = advise(each, now, advice_options);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].change, Change::kSchedule);
  EXPECT_EQ(advice[0].setup.schedule.name, "zb-h1");
  EXPECT_NEAR(advice[0].speed_up, (8 + 3) * 3 / (8 * 3 + 3.0), 1e-9);

  // With I = 1.2 F and W = 0.8 F, ZB-H2 is faster than ZB-H1 but holds more, so both are advised.
  for (balance::Profile& profile : each.profiles) {
    for (balance::LayerProfile& layer : profile.layers) {
      layer.split = balance::SplitBackward{1.2 * layer.forward, 0.8 * layer.forward, layer.kept};
    }
  }
  advice = advise(each, now, advice_options);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_EQ(advice[0].setup.schedule.name, "zb-h2");
  EXPECT_EQ(advice[1].setup.schedule.name, "zb-h1");
  EXPECT_GT(advice[0].speed_up, 1.01 * advice[1].speed_up);
  EXPECT_NEAR(advice[0].speed_up, (8 + 3) * 3 / (8 * 3 + 3.0), 0.02);
  EXPECT_GT(*std::max_element(advice[0].memory.begin(), advice[0].memory.end()),
            *std::max_element(advice[1].memory.begin(), advice[1].memory.end()));
  // ZB-H2 is not advised if it holds too much to fit.
  advice_options.memory_limit = *std::max_element(advice[1].memory.begin(), advice[1].memory.end());
  advice = advise(each, now, advice_options);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].setup.schedule.name, "zb-h1");
}

TEST(Advice, AmongThoseOfALoopAndOfAV) {
  // For eight layers on two workers, only schedules of the pipeline's own placement are advised.
  const Costs each = costs(std::vector<double>(8, 1.0));
  for (const Placement& placement : {Placement::loop(2, 2), Placement::v_shape(2)}) {
    AdviceOptions advice_options = named(placement);
    advice_options.chunks = {4};
    const std::vector<ScheduleChoice>& known = advice_options.schedules;
    const PipelineSetup now = setup({2, 2, 2, 2}, 4, Checkpoint::kNever, known.back());
    for (const Advice& advice_item : advise(each, now, advice_options)) {
      EXPECT_NO_THROW(advice_item.setup.schedule.make(4, 4).check(placement));
    }
  }
  // Fill-drain in a V is slower than ZB-V, so ZB-V is advised.
  AdviceOptions advice_options = named(Placement::v_shape(2));
  advice_options.chunks = {4};
  const ScheduleChoice slow = {"fill-drain in a V", [](int64_t, int64_t micro_batches) {
                                 return fill_drain_on(Placement::v_shape(2), micro_batches);
                               }};
  const std::vector<Advice> advice =
      advise(each, setup({2, 2, 2, 2}, 4, Checkpoint::kNever, slow), advice_options);
  ASSERT_FALSE(advice.empty());
  EXPECT_EQ(advice[0].change, Change::kSchedule);
  EXPECT_EQ(advice[0].setup.schedule.name, "zb-v");
}

TEST(Advice, OfSchedulesThatAreEquallyFastTheOneThatHoldsLess) {
  // The choices are two schedules that hold all micro-batches, and 1F1B after them, which is as
  // fast and holds less. So 1F1B is advised.
  const ScheduleChoice other = {"other", fill_drain};
  AdviceOptions advice_options = options();
  advice_options.schedules = {kFillDrain, other, kInTurns};
  const ScheduleChoice one_by_one = {"sequential", sequential};
  const std::vector<Advice> advice =
      advise(costs({1, 1}), setup({1, 1}, 16, Checkpoint::kNever, one_by_one), advice_options);
  ASSERT_FALSE(advice.empty());
  for (const Advice& advice_item : advice) EXPECT_EQ(advice_item.setup.schedule.name, "1f1b");
}

TEST(Advice, SeveralTogetherAreBetterThanEachAlone) {
  const PipelineSetup bad = setup({3, 1}, 16, Checkpoint::kAlways, kFillDrain);
  const Costs slow = costs({1, 1, 1, 1}, /*start=*/4);
  const std::vector<Advice> advice = advise(slow, bad);
  ASSERT_GE(advice.size(), 4u);
  EXPECT_EQ(advice[0].change, Change::kSeveral);
  EXPECT_THAT(advice[0].setup.balance, ElementsAre(2, 2));
  EXPECT_EQ(advice[0].setup.chunks, 2);
  EXPECT_THAT(advice[0].setup.checkpoints, Each(Checkpoint::kNever));
  // The present schedule "gpipe" stays, because it is as fast as 1F1B.
  EXPECT_EQ(advice[0].setup.schedule.name, "gpipe");
  EXPECT_TRUE(std::is_sorted(advice.begin(), advice.end(), [](const Advice& a, const Advice& b) {
    return a.speed_up > b.speed_up;
  }));
}

TEST(Advice, AScheduleForOneNumberOfMicroBatchesIsTriedWithThatOnly) {
  const ScheduleChoice fixed = {"as given",
                                [](int64_t, int64_t) { return Schedule::one_f_one_b(2, 16); }};
  const ScheduleChoice picky = {"picky", [](int64_t, int64_t) -> Schedule {
                                  throw std::invalid_argument("not for this number");
                                }};
  AdviceOptions advice_options = options();
  advice_options.schedules = {picky};
  EXPECT_TRUE(advise(costs({1, 1}, 4), setup({1, 1}, 16, Checkpoint::kNever, fixed), advice_options)
                  .empty());
}

}  // namespace
}  // namespace gpipe::diagnosis
