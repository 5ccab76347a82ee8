// Tests of the loop of a ResilientRun in one process, with losses that the test makes up.
// deaths_test has real losses.
#include "gpipe/resilient/resilient_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/failure.h"

namespace gpipe {
namespace {

using distributed::DistributedFailure;
using distributed::Fault;
using distributed::FaultKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

std::string new_path() {
  static int count = 0;
  return ::testing::TempDir() + "/resilient" + std::to_string(getpid()) + "-" +
         std::to_string(count++);
}

DistributedFailure failure(FaultKind kind) {
  Fault fault;
  fault.kind = kind;
  fault.rank = 2;
  return DistributedFailure({fault});
}

ResilientParts make(int64_t chunks = 2, bool seeds = true) {
  if (seeds) torch::manual_seed(1);
  ResilientParts parts;
  parts.pipe = GPipe(torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5)),
                     GPipeOptions({2}).chunks(chunks).cpu_threads_per_stage(1));
  parts.optimizer = std::make_shared<torch::optim::Adam>(parts.pipe->local_parameters());
  return parts;
}

double train(ResilientParts& parts, int64_t step) {
  parts.optimizer->zero_grad();
  const at::Tensor rows = at::linspace(0, 1 + static_cast<double>(step), 16).view({4, 4});
  const double loss = parts.pipe
                          ->step({rows}, {rows},
                                 [](const Tensors& outputs, const Tensors& targets) {
                                   return torch::nn::functional::mse_loss(outputs[0], targets[0]);
                                 })
                          .loss;
  parts.optimizer->step();
  return loss;
}

ResilientOptions eight_steps(const std::string& path = "") {
  ResilientOptions options;
  options.steps = 8;
  options.path = path;
  options.save_every = 3;
  return options;
}

// `met_after`: the faults that the run gives to each meeting.
ResilientRun run_of(ResilientOptions options, int64_t* worlds = nullptr, int64_t generation = 1,
                    std::vector<std::vector<Fault>>* met_after = nullptr) {
  return {std::move(options),
          [worlds, generation, met_after](const WorldOptions&, const MeetAgainOptions& again) {
            if (worlds != nullptr) ++*worlds;
            if (met_after != nullptr) met_after->push_back(again.faults);
            return Meeting{World(), generation, {}};
          },
          /*is_resilient=*/true};
}

// The hash at the end, and the steps whose body was called. `loses`: the numbers of the calls in
// which a process is lost.
struct Outcome {
  std::string hash;
  std::vector<int64_t> steps;
};
Outcome outcome(ResilientRun run, const std::vector<size_t>& loses, bool seeds = true) {
  Outcome result;
  run.run([seeds](const World&) { return make(2, seeds); },
          [&](ResilientParts& parts, int64_t step) {
            result.steps.push_back(step);
            const double loss = train(parts, step);
            for (const size_t call : loses) {
              if (result.steps.size() == call) throw failure(FaultKind::kDeath);
            }
            run.log("step " + std::to_string(step) + " " + std::to_string(loss));
          },
          [&](ResilientParts& parts, int64_t) { result.hash = parts.pipe->parameter_hash(); });
  return result;
}

TEST(ResilientRun, IsALoopWithoutLosses) {
  int64_t worlds = 0;
  const Outcome result = outcome(run_of(eight_steps(), &worlds), {});
  EXPECT_THAT(result.steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(worlds, 1);
  ResilientParts parts = make();
  for (int64_t step = 0; step < 8; ++step) train(parts, step);
  EXPECT_EQ(result.hash, parts.pipe->parameter_hash());
}

TEST(ResilientRun, TellsTheNextMeetingWhatHasEndedTheWorld) {
  std::vector<std::vector<Fault>> met_after;
  (void)outcome(run_of(eight_steps(), nullptr, 1, &met_after), {2});
  EXPECT_THAT(met_after, ElementsAre(std::vector<Fault>(), failure(FaultKind::kDeath).faults()));
}

TEST(ResilientRun, RepeatsStepsWithTheSameBitsAndPrintsOnce) {
  CaptureStdout();
  const std::string want = outcome(run_of(eight_steps()), {}).hash;
  const std::string lines = GetCapturedStdout();
  int64_t worlds = 0;
  CaptureStdout();
  const Outcome result = outcome(run_of(eight_steps(new_path()), &worlds), {2, 8});
  EXPECT_EQ(GetCapturedStdout(), lines);
  EXPECT_THAT(result.steps, ElementsAre(0, 1, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7));
  EXPECT_EQ(result.hash, want);
  EXPECT_EQ(worlds, 3);
  // Another run with the same path finds the checkpoint of the end, and has nothing to do.
  const std::string path = new_path();
  (void)outcome(run_of(eight_steps(path)), {});
  const Outcome again = outcome(run_of(eight_steps(path)), {});
  EXPECT_THAT(again.steps, ElementsAre());
  EXPECT_EQ(again.hash, want);
}

TEST(ResilientRun, MakesTheSameModelAgainIfOnlyTheProgramSeeds) {
  const auto of = [](const std::vector<size_t>& loses) {
    torch::manual_seed(7);
    return outcome(run_of(eight_steps()), loses, /*seeds=*/false).hash;
  };
  const std::string want = of({});
  EXPECT_EQ(of({3}), want);
  EXPECT_EQ(of({2, 5}), want);
}

TEST(ResilientRun, KeepsWhatTheUserKeeps) {
  ResilientRun run = run_of(eight_steps(new_path()));
  std::vector<int64_t> counts;
  bool has_lost = false;
  int64_t count = 0;
  run.run(
      [&](const World&) {
        count = 0;
        ResilientParts parts = make();
        parts.keep = [&] { return std::to_string(count); };
        parts.put_back = [&](const std::string& kept) { count = std::stoll(kept); };
        return parts;
      },
      [&](ResilientParts& parts, int64_t step) {
        train(parts, step);
        if (step == 4 && !has_lost) {
          has_lost = true;
          throw failure(FaultKind::kSilence);
        }
        count += 10;
        counts.push_back(count);
      });
  EXPECT_THAT(counts, ElementsAre(10, 20, 30, 40, 40, 50, 60, 70, 80));
  EXPECT_EQ(run.counts().recoveries, 1);
  // Step 3 is repeated; step 4 does not count, because it was not finished.
  EXPECT_EQ(run.counts().repeated_steps, 1);
}

TEST(ResilientRun, BeginsAnewWithWhatTheUserKeptAtFirst) {
  std::vector<int64_t> counts;
  bool has_lost = false;
  int64_t count = 5;
  run_of(eight_steps())
      .run(
          [&](const World&) {
            ResilientParts parts = make();
            parts.keep = [&] { return std::to_string(count); };
            parts.put_back = [&](const std::string& kept) { count = std::stoll(kept); };
            return parts;
          },
          [&](ResilientParts& parts, int64_t step) {
            train(parts, step);
            if (step == 2 && !std::exchange(has_lost, true)) throw failure(FaultKind::kDeath);
            counts.push_back(++count);
          });
  EXPECT_THAT(counts, ElementsAre(6, 7, 6, 7, 8, 9, 10, 11, 12, 13));
}

// If all processes die, those that the launcher starts instead are a later world, and have nothing.
TEST(ResilientRun, SaysThatALaterWorldBeginsAnew) {
  for (const int64_t generation : {1, 2}) {
    CaptureStderr();
    (void)outcome(run_of(eight_steps(), nullptr, generation), {});
    const std::string said = GetCapturedStderr();
    if (generation == 1) {
      EXPECT_EQ(said, "");
    } else {
      EXPECT_THAT(said, HasSubstr("begins anew: generation 2, no process has a state, and there "
                                  "is no checkpoint; give ResilientOptions::path to have one"));
    }
  }
}

TEST(ResilientRun, EndsAfterLossesInARowAndOtherExceptions) {
  int64_t worlds = 0;
  EXPECT_THROW(outcome(run_of(eight_steps(), &worlds), {1, 2, 3, 4}), DistributedFailure);
  EXPECT_EQ(worlds, 4);  // three recoveries, and the world before them
  for (const FaultKind kind : {FaultKind::kException, FaultKind::kLeft}) {
    worlds = 0;
    EXPECT_THROW(run_of(eight_steps(), &worlds)
                     .run([](const World&) { return make(); },
                          [&](ResilientParts&, int64_t) { throw failure(kind); }),
                 DistributedFailure);
    EXPECT_EQ(worlds, 1);
  }
  EXPECT_THAT(
      [] {
        run_of(eight_steps())
            .run([](const World&) { return make(); },
                 [](ResilientParts&, int64_t) { throw std::runtime_error("of the user's"); });
      },
      ThrowsMessage<std::runtime_error>(HasSubstr("of the user's")));
}

TEST(ResilientRun, SaysWhichMachineLacksMemory) {
  using internal::lack_of_memory;
  EXPECT_EQ(lack_of_memory({{"a", 400, 1000}, {"a", 500, 1000}, {"b", 900, 1000}}), "");
  EXPECT_EQ(lack_of_memory({{"a", 500, 0}}), "");  // not known
  EXPECT_EQ(
      lack_of_memory(
          {{"b", 600'000, 9'000'000}, {"a", 6'000'000, 9'000'000}, {"a", 5'000'000, 9'000'000}}),
      "the snapshots of the 2 processes on a take 11.0 MB more of its memory, and 9.0 MB are "
      "available: start fewer processes on it, or take more machines");
}

TEST(ResilientRun, RefusesWhatWouldGiveOtherBits) {
  int64_t chunks = 2;
  const auto with_other_chunks = [&] {
    run_of(eight_steps(new_path()))
        .run([&](const World&) { return make(chunks++); },
             [](ResilientParts&, int64_t) { throw failure(FaultKind::kDeath); });
  };
  EXPECT_THAT(with_other_chunks, ThrowsMessage<std::runtime_error>(HasSubstr(
                                     "the run had 2 chunks, 0 groups, 1 threads per stage, and "
                                     "make() gave 3 chunks")));
  ResilientOptions of_none;
  of_none.multiple_of = 0;
  EXPECT_THAT([&] { run_of(of_none); },
              ThrowsMessage<c10::ValueError>(HasSubstr("multiple_of is 0: give 1 or more")));
  ResilientOptions options;
  options.snapshot_every = 0;
  EXPECT_THAT([&] { run_of(options); },
              ThrowsMessage<c10::ValueError>(HasSubstr("snapshot_every is 0: give 1 or more")));
  EXPECT_THAT(
      [] {
        run_of(eight_steps())
            .run([](const World&) { return ResilientParts(); }, [](ResilientParts&, int64_t) {});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("returned no pipeline")));
}

}  // namespace
}  // namespace gpipe
