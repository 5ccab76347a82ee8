#include "balance/choose/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "balance/choose/plan_check.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/search.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/testing/seed.h"

namespace gpipe::balance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// Makes a profile of random whole numbers, so that sums are exact.
Profile random_profile(int64_t layers, std::mt19937_64& random) {
  const auto draw = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most)) + 1;
  };
  Profile profile;
  profile.device = "device";
  profile.batch_rows = 2;
  profile.input = draw(50);
  for (int64_t k = 0; k < layers; ++k) {
    LayerProfile layer;
    layer.name = std::to_string(k);
    layer.forward = static_cast<double>(draw(8));
    layer.backward = static_cast<double>(draw(16));
    layer.parameters = draw(40);
    layer.kept = draw(100);
    layer.workspace = draw(30);
    layer.output = draw(50);
    layer.split = SplitBackward{layer.backward * 0.6, layer.backward * 0.5, draw(100)};
    profile.layers.push_back(layer);
  }
  if (layers > 3) profile.skips = {{0, layers - 1, draw(50)}};
  return profile;
}

PlanProblem problem_of(int64_t devices, const Profile& profile,
                       const std::vector<int64_t>& micro_batches) {
  PlanProblem problem;
  problem.devices = devices;
  for (const int64_t m : micro_batches) {
    Chunking chunking;
    chunking.chunks = m;
    chunking.sizes.assign(static_cast<size_t>(m), 1.0);
    chunking.profile = profile;
    // All cuts have the same number of rows in total: the more micro-batches, the less each costs.
    for (LayerProfile& layer : chunking.profile.layers) {
      const double share = 4.0 / static_cast<double>(m);
      layer.forward = layer.forward * share + 0.5;
      layer.backward = layer.backward * share + 1;
      layer.split->input = layer.split->input * share + 0.5;
      layer.split->weight = layer.split->weight * share + 1;
      layer.kept = 4 * layer.kept / m;
      layer.output = 4 * layer.output / m;
    }
    problem.chunkings.push_back(chunking);
  }
  problem.stages_per_device = {1, 2};
  // The schedules that search by themselves are left out, because they take seconds.
  problem.schedules = {"1f1b", "fill-drain", "zb-h1", "interleaved", "zb-interleaved", "search"};
  problem.budget = 100'000;
  return problem;
}

// Visits all ways to write `sum` as `count` numbers of at least 1.
void for_each_balance(int64_t sum, int64_t count, std::vector<int64_t>& balance,
                      const std::function<void(const std::vector<int64_t>&)>& visit) {
  if (count == 1) {
    balance.push_back(sum);
    visit(balance);
    balance.pop_back();
    return;
  }
  for (int64_t first = 1; first + count - 1 <= sum; ++first) {
    balance.push_back(first);
    for_each_balance(sum - first, count - 1, balance, visit);
    balance.pop_back();
  }
}

// The shortest step of all allowed choices, found independently of the search.
double brute_force(const PlanProblem& problem) {
  double best = std::numeric_limits<double>::infinity();
  for (const Chunking& chunking : problem.chunkings) {
    const auto m = static_cast<int64_t>(chunking.sizes.size());
    for (const std::string& name : problem.schedules) {
      for (const int64_t v : problem.stages_per_device) {
        const int64_t stages = problem.devices * v;
        if (stages > static_cast<int64_t>(chunking.profile.layers.size())) continue;
        Schedule schedule = Schedule::one_f_one_b(1, 1);
        try {
          NamedScheduleOptions options;
          options.stages_per_worker = v;
          schedule = schedule_by_name(name, stages, m, options);
        } catch (const std::invalid_argument&) {
          continue;  // the schedule cannot have this number of stages on a device
        }
        std::vector<int64_t> balance;
        for_each_balance(
            static_cast<int64_t>(chunking.profile.layers.size()), stages, balance,
            [&](const std::vector<int64_t>& layers) {
              const auto count = static_cast<int64_t>(problem.checkpoints.size());
              int64_t all = 1;
              for (int64_t j = 0; j < stages; ++j) all *= count;
              for (int64_t code = 0; code < all; ++code) {
                ExplainOptions options = problem.machine;
                options.chunks = m;
                options.schedule = [&](int64_t, int64_t) { return schedule; };
                for (int64_t j = 0, rest = code; j < stages; ++j, rest /= count) {
                  options.partition_checkpoints.push_back(
                      problem.checkpoints[static_cast<size_t>(rest % count)]);
                }
                const Explanation explanation = explain(chunking.profile, layers, options);
                bool fits = true;
                for (size_t d = 0; d < explanation.workers.size() && !problem.limits.empty(); ++d) {
                  fits = fits && explanation.workers[d].memory <= problem.limits[d];
                }
                if (fits) best = std::min(best, explanation.step);
              }
            });
      }
    }
  }
  return best;
}

PipelinePlan value_of(const PlanProblem& problem, const PlanCandidate& candidate) {
  PipelinePlan plan;
  // The micro-batches have the profile's two rows; the last one may have a single row.
  const std::vector<double>& sizes = problem.chunkings[candidate.cut].sizes;
  plan.rows = 2 * static_cast<int64_t>(sizes.size()) - (sizes.back() < 1 ? 1 : 0);
  plan.profiled_on = "device";
  plan.balance = candidate.balance;
  plan.chunks = candidate.chunks;
  plan.checkpoints = candidate.checkpoints;
  plan.schedule_name = candidate.schedule_name;
  plan.schedule = *candidate.schedule;
  plan.step = candidate.step;
  plan.devices.clear();
  for (size_t d = 0; d < candidate.memory.size(); ++d) {
    plan.devices.push_back({problem.limits.empty() ? 0 : problem.limits[d], candidate.memory[d], -1,
                            candidate.memory[d]});
  }
  return plan;
}

// The problems of a candidate, found by check_plan(), which is other code.
std::vector<std::string> problems_of(const PlanProblem& problem, const PlanCandidate& candidate) {
  const Chunking& chunking = problem.chunkings[candidate.cut];
  return check_plan(value_of(problem, candidate), chunking.profile, chunking.sizes, problem.machine)
      .problems;
}

TEST(PlanSearch, SmallProblemsAreSolvedAsByTryingEverything) {
  std::mt19937_64 random(testing::test_seed());
  for (int round = 0; round < 8; ++round) {
    PlanProblem problem = problem_of(2, random_profile(5, random), {2, 4});
    problem.schedules = {"1f1b", "zb-h1", "interleaved"};
    if (round % 3 == 1) problem.machine.bandwidth = 20;
    if (round % 4 == 1) problem.machine.cores = 1;
    const PlanSearch free = search_plan(problem);
    EXPECT_TRUE(free.exhaustive);
    EXPECT_DOUBLE_EQ(free.best.step, brute_force(problem));
    // Limits below what the best choice takes make the search find another choice, or none.
    const int64_t most = *std::max_element(free.best.memory.begin(), free.best.memory.end());
    problem.limits = {most * 3 / 4, most * 4 / 5};
    const PlanSearch tight = search_plan(problem);
    const double best = brute_force(problem);
    EXPECT_EQ(tight.best.fits(), best < std::numeric_limits<double>::infinity());
    if (tight.best.fits()) {
      EXPECT_DOUBLE_EQ(tight.best.step, best);
    }
    EXPECT_GE(tight.best.step, free.best.step);
  }
}

TEST(PlanSearch, LargerProblemsComeNear) {
  std::mt19937_64 random(testing::test_seed());
  double worst = 1;
  for (int round = 0; round < 3; ++round) {
    PlanProblem problem = problem_of(3, random_profile(9, random), {6});
    problem.schedules = {"1f1b", "zb-h1"};
    problem.budget = 0;
    problem.stages_per_device = {1};
    problem.checkpoints = {Checkpoint::kNever, Checkpoint::kAlways};
    const PlanSearch all = search_plan(problem);
    ASSERT_TRUE(all.exhaustive);
    // With 20 modes each setting has too many choices to try them all, so the heuristic search
    // runs.
    problem.checkpoints.assign(20, Checkpoint::kAlways);
    problem.checkpoints[0] = Checkpoint::kNever;
    const PlanSearch moved = search_plan(problem);
    ASSERT_FALSE(moved.exhaustive);
    worst = std::max(worst, moved.best.step / all.best.step);
  }
  EXPECT_LE(worst, 1.05);
}

TEST(PlanSearch, WhatIsSaidOfACandidateIsFoundByOtherCodeToo) {
  std::mt19937_64 random(testing::test_seed());
  for (int round = 0; round < 8; ++round) {
    PlanProblem problem = problem_of(2 + round % 2, random_profile(12, random), {1, 4, 5});
    problem.chunkings[2].sizes.back() = 0.5;
    problem.machine.param_scale = 3;
    problem.machine.overhead = 0.25;
    if (round % 2 == 1) {
      problem.machine.bandwidth = 30;
      problem.machine.latency = 0.5;
    }
    if (round % 3 == 1) {
      problem.machine.cores = 2;
      problem.machine.contention = 1.1;
    }
    if (round >= 4) {  // profiles without measured halves
      for (Chunking& chunking : problem.chunkings) {
        for (LayerProfile& layer : chunking.profile.layers) layer.split.reset();
      }
    }
    const PlanSearch found = search_plan(problem);
    EXPECT_THAT(problems_of(problem, found.best), IsEmpty());
    for (const PlanCandidate& other : found.others) {
      EXPECT_THAT(problems_of(problem, other), IsEmpty()) << other.schedule_name;
      EXPECT_GE(other.step, found.best.step * (1 - 1e-6));
    }
    for (const PlanAlternative& alternative : found.alternatives) {
      EXPECT_THAT(problems_of(problem, alternative.candidate), IsEmpty()) << alternative.value;
    }
    EXPECT_FALSE(found.alternatives.empty());
  }
}

TEST(PlanSearch, LimitsAreKeptWhereTheyCanBe) {
  std::mt19937_64 random(testing::test_seed());
  int fitting = 0;
  for (int round = 0; round < 6; ++round) {
    PlanProblem problem = problem_of(3, random_profile(10, random), {2, 8});
    const PlanSearch free = search_plan(problem);
    const int64_t most = *std::max_element(free.best.memory.begin(), free.best.memory.end());
    problem.limits.assign(3, most * 4 / 5);
    const PlanSearch found = search_plan(problem);
    if (!found.best.fits()) {
      EXPECT_THAT(found.others, IsEmpty());
      continue;
    }
    ++fitting;
    EXPECT_THAT(problems_of(problem, found.best), IsEmpty()) << "the limits are checked, too";
    for (const PlanCandidate& other : found.others) {
      EXPECT_THAT(problems_of(problem, other), IsEmpty());
    }
  }
  EXPECT_GT(fitting, 0);
}

TEST(PlanSearch, WhereNothingFitsTheNearestWorks) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(2, random_profile(6, random), {1, 2, 4});
  problem.limits = {1, 1};
  const PlanSearch nothing = search_plan(problem);
  ASSERT_FALSE(nothing.best.fits());
  const int64_t needed = *std::max_element(nothing.best.memory.begin(), nothing.best.memory.end());
  EXPECT_EQ(nothing.best.excess, needed - 1);
  problem.limits = {needed, needed};
  EXPECT_TRUE(search_plan(problem).best.fits());
}

TEST(PlanSearch, GivesTheSameEachTime) {
  std::mt19937_64 random(testing::test_seed());
  const PlanProblem problem = problem_of(4, random_profile(16, random), {4, 8});
  const PlanSearch once = search_plan(problem);
  const PlanSearch again = search_plan(problem);
  EXPECT_EQ(once.best.step, again.best.step);
  EXPECT_EQ(once.best.balance, again.best.balance);
  EXPECT_EQ(*once.best.schedule, *again.best.schedule);
  EXPECT_EQ(once.examined, again.examined);
  EXPECT_EQ(once.others.size(), again.others.size());
}

TEST(PlanSearch, IsNeverWorseThanOneOfItsChoicesAlone) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(4, random_profile(14, random), {4, 8});
  problem.schedules.clear();
  const double all = search_plan(problem).best.step;
  for (const NamedSchedule& named : named_schedules()) {
    if (named.name == "gpipe" || named.shape == PlacementShape::kOneWorker) continue;
    PlanProblem alone = problem;
    alone.schedules = {named.name};
    const PlanSearch found = search_plan(alone);
    EXPECT_EQ(found.best.schedule_name, named.name);
    EXPECT_LE(all, found.best.step * 1.02) << named.name;
  }
}

// Layers of which some have large parameters, others large activations.
Profile uneven_profile(int64_t layers, std::mt19937_64& random) {
  Profile profile = random_profile(layers, random);
  const auto scale = [&](int64_t& bytes) { bytes *= int64_t{1} << random() % 6; };
  for (LayerProfile& layer : profile.layers) {
    scale(layer.parameters);
    scale(layer.kept);
    scale(layer.workspace);
    scale(layer.output);
    if (random() % 2 == 0) layer.split.reset();
  }
  return profile;
}

// The least memory of the fullest device over all allowed choices. The modes of one device do not
// affect another, so each `code` stands for modes of the stages of every device.
int64_t least_memory(const PlanProblem& problem) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Chunking& chunking : problem.chunkings) {
    const auto m = static_cast<int64_t>(chunking.sizes.size());
    for (const std::string& name : problem.schedules) {
      for (const int64_t v : problem.stages_per_device) {
        const int64_t stages = problem.devices * v;
        NamedScheduleOptions named;
        named.stages_per_worker = v;
        std::optional<Schedule> schedule;
        try {
          schedule = schedule_by_name(name, stages, m, named);
        } catch (const std::invalid_argument&) {
          continue;  // the schedule cannot have this number of stages on a device
        }
        std::vector<int64_t> balance;
        for_each_balance(
            static_cast<int64_t>(chunking.profile.layers.size()), stages, balance,
            [&](const std::vector<int64_t>& layers) {
              std::vector<int64_t> held(static_cast<size_t>(problem.devices),
                                        std::numeric_limits<int64_t>::max());
              const size_t modes = problem.checkpoints.size();
              size_t all = 1;
              for (int64_t k = 0; k < v; ++k) all *= modes;
              for (size_t code = 0; code < all; ++code) {
                ExplainOptions options = problem.machine;
                options.chunks = m;
                options.schedule = [&](int64_t, int64_t) { return *schedule; };
                std::vector<size_t> next(held.size(), code);  // [device]
                for (int64_t j = 0; j < stages; ++j) {
                  size_t& rest = next[static_cast<size_t>(schedule->worker_of(j))];
                  options.partition_checkpoints.push_back(problem.checkpoints[rest % modes]);
                  rest /= modes;
                }
                const Explanation explanation = explain(chunking.profile, layers, options);
                for (size_t d = 0; d < held.size(); ++d) {
                  held[d] = std::min(held[d], explanation.workers[d].memory);
                }
              }
              least = std::min(least, *std::max_element(held.begin(), held.end()));
            });
      }
    }
  }
  return least;
}

TEST(PlanSearch, WhatFitsIsFoundAndWhatNothingFitsIntoIsLittleMoreThanTheLeast) {
  std::mt19937_64 random(testing::test_seed());
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    PlanProblem problem = problem_of(2 + round % 2, uneven_profile(7 + round % 4, random), {2, 4});
    problem.schedules = {"1f1b", "interleaved", "zb-interleaved"};
    problem.budget = 0;
    problem.machine.param_scale = 4;
    const int64_t least = least_memory(problem);
    const auto found = [&](int64_t limit) {
      problem.limits.assign(static_cast<size_t>(problem.devices), limit);
      return search_plan(problem).best;
    };
    for (const int64_t limit : {least - 1, least / 4}) {
      const std::vector<int64_t> memory = found(limit).memory;
      EXPECT_LE(*std::max_element(memory.begin(), memory.end()), least + least / 50);
    }
    EXPECT_TRUE(found(least + least / 50).fits());
  }
}

// All parts of a search must share its budget. Once, cuts for the least memory, refined cuts and
// orders had budgets of their own, beyond the total.
TEST(PlanSearch, KeepsItsBudgetInAllThatItTries) {
  std::mt19937_64 random(testing::test_seed());
  int none_fits = 0;
  int with_orders = 0;
  for (int round = 0; round < 24; ++round) {
    PlanProblem problem = problem_of(2 + round % 3, uneven_profile(9 + round % 5, random), {4, 8});
    if (round % 2 == 0) problem.schedules = {"1f1b", "interleaved"};
    problem.machine.param_scale = 4;
    for (const int64_t budget : {20'000, 300'000, 3'000'000}) {
      SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(budget));
      problem.budget = budget;
      problem.limits.clear();
      const PlanSearch free = search_plan(problem);
      EXPECT_LE(free.tried, budget + budget / 5);
      if (free.best.schedule_name == "search") ++with_orders;
      problem.limits.assign(static_cast<size_t>(problem.devices), 1);
      const PlanSearch tight = search_plan(problem);
      EXPECT_LE(tight.tried, budget + budget / 5);
      EXPECT_GT(tight.tried, 0);
      if (!tight.best.fits()) ++none_fits;
    }
  }
  EXPECT_GT(none_fits, 0);
  EXPECT_GT(with_orders, 0);
}

TEST(PlanSearch, OneDeviceHasNoSchedulesToChooseFrom) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(1, random_profile(3, random), {1, 2});
  problem.stages_per_device = {1};
  const PlanSearch found = search_plan(problem);
  EXPECT_EQ(found.best.schedule_name, "1f1b");
  EXPECT_THAT(found.best.balance, ElementsAre(3));
  EXPECT_THAT(problems_of(problem, found.best), IsEmpty());
}

TEST(PlanSearch, OneStageTakes1f1bForAnyNameThatIsWanted) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(1, random_profile(3, random), {2});
  problem.stages_per_device = {1};
  for (const char* name : {"zb-h1", "zb-h2", "fill-drain"}) {
    problem.schedules = {name};
    EXPECT_EQ(search_plan(problem).best.schedule_name, "1f1b") << name;
  }
}

TEST(PlanSearch, ManyStagesPerDeviceAreSkipped) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(2, random_profile(4, random), {2});
  problem.stages_per_device = {1, int64_t{1} << 62};
  EXPECT_EQ(search_plan(problem).best.stages_per_device, 1);
}

TEST(PlanSearch, CutsLeftOutForCostlySchedulesAreNotExhaustive) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(2, random_profile(2, random), {1, 2, 3});
  problem.stages_per_device = {1};
  problem.schedules = {"1f1b", "zb-h2"};
  EXPECT_FALSE(search_plan(problem).exhaustive);
  problem.chunkings.pop_back();
  EXPECT_TRUE(search_plan(problem).exhaustive);
}

TEST(PlanSearch, ProfilesAreCheckedBeforeTheirSums) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(2, random_profile(4, random), {2});
  problem.chunkings.front().profile.layers[1].forward = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT([&] { search_plan(problem); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("cannot have been measured")));
}

TEST(PlanSearch, LayersThatMustNotBeSeparatedStayTogether) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(2, random_profile(6, random), {4});
  problem.machine.keep_together = {{0, 2}, {3, 5}};
  problem.stages_per_device = {1, 2};
  const PlanSearch found = search_plan(problem);
  EXPECT_THAT(found.best.balance, ElementsAre(3, 3));
  for (const PlanCandidate& other : found.others) EXPECT_THAT(other.balance, ElementsAre(3, 3));
}

TEST(PlanSearch, MistakesAreNamed) {
  std::mt19937_64 random(testing::test_seed());
  const PlanProblem good = problem_of(2, random_profile(4, random), {2});
  const auto message = [&](const std::function<void(PlanProblem&)>& change, const auto& expected) {
    PlanProblem problem = good;
    change(problem);
    EXPECT_THAT([&] { search_plan(problem); }, ThrowsMessage<std::invalid_argument>(expected));
  };
  message([](PlanProblem& p) { p.devices = 0; }, HasSubstr("devices is 0"));
  message([](PlanProblem& p) { p.devices = 5; },
          AllOf(HasSubstr("has 4 layers that may be separated"), HasSubstr("give 4 devices")));
  message([](PlanProblem& p) { p.limits = {5}; }, HasSubstr("expected 2, one for each device"));
  message([](PlanProblem& p) { p.chunkings.clear(); }, HasSubstr("no numbers of micro-batches"));
  message(
      [](PlanProblem& p) {
        p.chunkings.push_back(p.chunkings.front());
        p.chunkings.back().profile.autocast = "bfloat16";
      },
      AllOf(HasSubstr("under autocast to bfloat16"), HasSubstr("without autocast")));
  message(
      [](PlanProblem& p) {
        p.chunkings.push_back(p.chunkings.front());
        p.chunkings.back().profile.deferred_batch_norm = true;
      },
      HasSubstr("one was made with deferred batch norms; make all of them alike"));
  message([](PlanProblem& p) { p.checkpoints.clear(); }, HasSubstr("no checkpoint modes"));
  message([](PlanProblem& p) { p.schedules = {"1f1c"}; }, HasSubstr("1f1b"));
  message([](PlanProblem& p) { p.stages_per_device = {0}; }, HasSubstr("give 1 or more"));
  message([](PlanProblem& p) { p.budget = -1; }, HasSubstr("budget is -1"));
  message(
      [](PlanProblem& p) {
        p.schedules = {"zb-v"};
        p.stages_per_device = {1};
      },
      HasSubstr("were given: zb-v can have 2; add one of these, or 1f1b and 1"));
  message(
      [](PlanProblem& p) {
        p.schedules = {"interleaved"};
        p.stages_per_device = {1, 64};
      },
      HasSubstr("interleaved can have 2; add"));
  message(
      [](PlanProblem& p) {
        p.machine.keep_together = {{2, 9}};
      },
      HasSubstr("layers 2 to 9, expected first <= last, both from 0 to 3"));
}

// A skip crosses a slow link between stages. A searched order is as good as the one that
// gpipe::search() finds when it knows the skip.
TEST(PlanSearch, SearchedOrdersKnowSkips) {
  Profile profile;
  profile.device = "device";
  profile.batch_rows = 1;
  for (int k = 0; k < 3; ++k) {
    LayerProfile layer;
    layer.name = std::to_string(k);
    layer.forward = 4;
    layer.backward = 8;
    layer.output = 1;
    profile.layers.push_back(layer);
  }
  profile.skips = {{0, 2, 30}};
  PlanProblem problem;
  problem.devices = 3;
  problem.chunkings = {{6, std::vector<double>(6, 1.0), profile}};
  problem.checkpoints = {Checkpoint::kNever};
  problem.schedules = {"1f1b", "search"};
  problem.stages_per_device = {1};
  problem.machine.bandwidth = 1;
  const PlanSearch found = search_plan(problem);

  SearchOptions options;
  options.placement = Placement::one_each(3);
  options.micro_batches = 6;
  options.costs = {{4, 8, 4, 4}};
  options.activation_transfer = options.gradient_transfer = {1};
  options.skips = {{0, 2, 30, 30}};
  const SearchResult told = search(options);
  options.skips.clear();
  const SearchResult chain = search(options);
  options.skips = {{0, 2, 30, 30}};
  const double untold =
      simulate(chain.schedule, search_routes(options), simulate_options(options)).makespan;
  EXPECT_LT(told.makespan, untold - 1);
  EXPECT_EQ(found.best.schedule_name, "search");
  EXPECT_NEAR(found.best.step, told.makespan, 1e-6);
}

TEST(PlanSearch, ACutWithoutMicroBatchesIsRefused) {
  std::mt19937_64 random(testing::test_seed());
  PlanProblem problem = problem_of(2, random_profile(4, random), {2});
  problem.chunkings.front().sizes.clear();
  EXPECT_THAT([&] { search_plan(problem); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("2 chunks has no sizes; give one")));
}

}  // namespace
}  // namespace gpipe::balance
