// Tests of the loop of a ResilientRun in one process, with losses that the test makes up.
// deaths_test has real losses.
#include "gpipe/resilient/resilient_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/failure.h"

namespace {
bool can_exchange_folders = true;
}  // namespace

// Replaces the function of the C library in the whole program.
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  if (flags == RENAME_EXCHANGE && !can_exchange_folders) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

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

ResilientParts parts_of(const torch::nn::Sequential& model, int64_t chunks = 2) {
  ResilientParts parts;
  parts.pipe = GPipe(model, GPipeOptions({2}).chunks(chunks).cpu_threads_per_stage(1));
  parts.optimizer = std::make_shared<torch::optim::Adam>(parts.pipe->local_parameters());
  return parts;
}

ResilientParts make(int64_t chunks = 2, bool seeds = true) {
  if (seeds) torch::manual_seed(1);
  return parts_of(torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5)), chunks);
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

// A scheduler cannot be saved: it is made anew, and stepped as often as the former one.
TEST(ResilientRun, KeepsTheLearningRateOfASchedulerThatIsSteppedAgain) {
  const auto rates = [](std::vector<int64_t> loses) {
    std::vector<double> result(8);
    std::unique_ptr<torch::optim::StepLR> scheduler;
    int64_t count = 0;
    run_of(eight_steps(new_path()))
        .run(
            [&](const World&) {
              ResilientParts parts = make();
              torch::optim::Optimizer* const optimizer = parts.optimizer.get();
              scheduler = std::make_unique<torch::optim::StepLR>(*optimizer, 2, 0.5);
              count = 0;
              parts.keep = [&] { return std::to_string(count); };
              parts.put_back = [&, optimizer](const std::string& kept) {
                scheduler = std::make_unique<torch::optim::StepLR>(*optimizer, 2, 0.5);
                for (count = 0; count < std::stoll(kept); ++count) scheduler->step();
              };
              return parts;
            },
            [&](ResilientParts& parts, int64_t step) {
              result[static_cast<size_t>(step)] =
                  parts.optimizer->param_groups().front().options().get_lr();
              train(parts, step);
              if (!loses.empty() && loses.back() == step) {
                loses.pop_back();
                throw failure(FaultKind::kDeath);
              }
              scheduler->step();
              ++count;
            });
    return result;
  };
  EXPECT_EQ(rates({7, 4}), rates({}));
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

// Goes on with what `model` returns after a loss.
void lose_once(const std::function<torch::nn::Sequential()>& model) {
  bool has_lost = false;
  run_of(eight_steps())
      .run([&](const World&) { return parts_of(model()); },
           [&](ResilientParts& parts, int64_t step) {
             train(parts, step);
             if (step == 2 && !std::exchange(has_lost, true)) throw failure(FaultKind::kDeath);
           });
}

TEST(ResilientRun, RefusesAModelThatIsKept) {
  const torch::nn::Sequential kept(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5));
  EXPECT_THAT([&] { lose_once([&] { return kept; }); },
              ThrowsMessage<c10::ValueError>(HasSubstr(
                  "a parameter of the world before, '0.weight', which has been trained")));
  const torch::nn::Linear layer(4, 4);
  EXPECT_THAT(
      [&] { lose_once([&] { return torch::nn::Sequential(torch::nn::Dropout(0.5), layer); }); },
      ThrowsMessage<c10::ValueError>(HasSubstr("'1.weight', which has been trained")));
  // Statistics change without a gradient, and so may a frozen table into which a layer writes.
  const torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(4).affine(false));
  EXPECT_THAT(
      [&] { lose_once([&] { return torch::nn::Sequential(torch::nn::Linear(4, 4), norm); }); },
      ThrowsMessage<c10::ValueError>(
          HasSubstr("a buffer of the world before, '1.num_batches_tracked', which has")));
  // As a pipeline over replicas, which compares the values.
  const auto throws_then = [](bool keeps) {
    std::vector<torch::nn::Sequential> models;
    int64_t worlds = 0;
    CaptureStderr();
    EXPECT_THROW(lose_once([&]() -> torch::nn::Sequential {
                   TORCH_CHECK_VALUE(++worlds == 1, "other values");
                   torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5));
                   if (keeps) models.push_back(model);
                   return model;
                 }),
                 c10::ValueError);
    return GetCapturedStderr();
  };
  EXPECT_THAT(throws_then(true), HasSubstr("make the model anew in make()"));
  EXPECT_EQ(throws_then(false), "");
}

TEST(ResilientRun, TakesANewModelBesideTheOldOne) {
  std::vector<torch::nn::Sequential> models;
  const torch::nn::Dropout dropout(0.5);  // has no parameters
  const torch::nn::Linear frozen(4, 4);   // keeps its values
  for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  // Its statistics are only read.
  torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(4).affine(false));
  norm->eval();
  for (const torch::nn::AnyModule& kept :
       {torch::nn::AnyModule(dropout), torch::nn::AnyModule(frozen), torch::nn::AnyModule(norm)}) {
    models.clear();
    lose_once([&] {
      models.emplace_back(torch::nn::Linear(4, 4));
      models.back()->push_back(kept);
      return models.back();
    });
    EXPECT_EQ(models.size(), 2u);
  }
}

TEST(ResilientRun, SaysBeforeTheFirstStepWhatItCannotSave) {
  const auto run_with = [](const std::string& path,
                           const std::function<void(ResilientParts&)>& change) {
    run_of(eight_steps(path))
        .run(
            [&](const World&) {
              ResilientParts parts = make();
              change(parts);
              return parts;
            },
            [](ResilientParts&, int64_t) { ADD_FAILURE() << "a step was made"; });
  };
  for (const std::string& path : {std::string(), new_path()}) {
    EXPECT_THAT(
        [&] {
          run_with(path, [](ResilientParts& parts) {
            parts.keep = [] { return "ab\xff"; };
            parts.put_back = [](const std::string&) {};
          });
        },
        ThrowsMessage<c10::ValueError>(
            HasSubstr("ResilientParts::keep returned bytes that are not UTF-8, behind 2 that are; "
                      "encode them (base64, hex)")));
    EXPECT_THAT(
        [&] {
          run_with(path, [](ResilientParts& parts) {
            parts.optimizer = std::make_shared<torch::optim::LBFGS>(parts.pipe->parameters());
          });
        },
        ThrowsMessage<c10::NotImplementedError>(HasSubstr("LBFGS has states")));
  }
}

TEST(ResilientRun, TriesAtOnceWhetherACheckpointCanBeReplaced) {
  can_exchange_folders = false;
  EXPECT_THAT([] { run_of(eight_steps(new_path())); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr("give a path on one that can exchange folders (ext4, XFS,")));
  EXPECT_NO_THROW(run_of(eight_steps()));
  can_exchange_folders = true;
  EXPECT_NO_THROW(run_of(eight_steps(new_path())));
}

TEST(ResilientRun, RunsOnce) {
  ResilientRun run = run_of(eight_steps());
  const auto begin = [&] { run.run([](const World&) { return make(); }, train); };
  begin();
  EXPECT_THAT(begin, ThrowsMessage<std::logic_error>(HasSubstr("run was called again")));
}

TEST(AsReplicas, DivideTheProcessesAndTheMost) {
  const auto replicas = [](int64_t size, int64_t most) {
    return as_replicas(World(nullptr, 0, size), most).replicas();
  };
  EXPECT_EQ(replicas(4, 4), 4);
  EXPECT_EQ(replicas(6, 4), 2);
  EXPECT_EQ(replicas(3, 4), 1);
  EXPECT_THAT([&] { replicas(4, 0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("given 0 replicas at most; give 1")));
}

}  // namespace
}  // namespace gpipe
