#include "balance/choose/plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balance/choose/plan_options.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/testing/autocast_scope.h"
#include "meta/meta_scope.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Lt;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

nn::Sequential make() {
  nn::Sequential model;
  for (int k = 0; k < 6; ++k) {
    model->push_back(nn::Linear(64, 64));
    model->push_back(nn::Tanh());
  }
  return model;
}

nn::Sequential make_on_meta() {
  const MetaScope scope;
  return make();
}

at::Tensor on_meta(int64_t rows) {
  return at::empty({rows, 64}, at::TensorOptions().device(at::kMeta));
}

std::unique_ptr<torch::optim::Optimizer> adam(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::Adam>(std::move(parameters));
}

// Plans the memory of the plan's choice again.
MemoryPlan real_memory(const PipelinePlan& plan, const MakeOptimizer& optimizer) {
  const LossFn sum = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); };
  return memory_plan(make_on_meta(), {on_meta(plan.rows)}, {}, sum,
                     MemoryPlanOptions(plan.balance)
                         .chunks(plan.chunks)
                         .partition_checkpoints(plan.checkpoints)
                         .schedule([&](int64_t, int64_t) { return plan.schedule; })
                         .device_of_stage(plan.placement().worker_of_stage())
                         .optimizer(optimizer)
                         .capacity(plan.devices[0].limit));
}

PlanOptions small(int64_t devices) {
  return PlanOptions(devices).chunks({1, 4, 16}).budget(200'000);
}

TEST(Plan, OnMetaMemoryIsPlannedAndHolds) {
  const PlanReport free = plan(make_on_meta(), {on_meta(4096)}, small(2).optimizer(adam));
  EXPECT_TRUE(free.memory_planned);
  EXPECT_THAT(free.proof.problems, IsEmpty());
  EXPECT_THAT(free.others, Not(IsEmpty()));
  EXPECT_GT(free.plan.lower_bound, 0);
  EXPECT_LE(free.plan.lower_bound, free.plan.step);
  ASSERT_THAT(free.plan.devices, SizeIs(2));
  int64_t most = 0;
  for (const PlannedDevice& device : free.plan.devices) {
    EXPECT_GE(device.reserved, device.live);
    most = std::max(most, device.reserved);
  }
  const MemoryPlan planned = real_memory(free.plan, adam);
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_EQ(planned.devices[d].peak.bytes, free.plan.devices[d].live);
    EXPECT_EQ(planned.devices[d].reserved, free.plan.devices[d].reserved);
  }

  // The limit is below what the choice takes, so another choice must be found. It is not faster.
  const int64_t limit = most * 9 / 10;
  const PlanReport tight =
      plan(make_on_meta(), {on_meta(4096)}, small(2).optimizer(adam).memory(limit));
  EXPECT_GE(tight.plan.step, free.plan.step);
  EXPECT_NE(tight.plan, free.plan);
  for (const DeviceMemory& device : real_memory(tight.plan, adam).devices) {
    EXPECT_GE(device.reserved, 0) << "it runs out of memory";
    EXPECT_LE(device.reserved, limit);
  }
}

// A large layer takes memory for its gradients a second time if there are several micro-batches.
// The profile does not know that, so plan() must plan the memory of a single micro-batch, too.
TEST(Plan, WhereNothingFitsASingleMicroBatchIsLookedAt) {
  const auto needed = [](std::vector<int64_t> chunks) {
    nn::Sequential model;
    {
      const MetaScope scope;
      model->push_back(nn::Linear(64, 64));
      model->push_back(nn::Linear(nn::LinearOptions(64, 1 << 18).bias(false)));
    }
    std::string message;
    try {
      plan(model, {on_meta(8)}, small(2).chunks(std::move(chunks)).memory(10'000));
    } catch (const c10::ValueError& error) {
      message = error.what_without_backtrace();
    }
    const std::string before = "at least that (";
    const size_t open = message.find(before);
    return open == std::string::npos ? -1 : std::stoll(message.substr(open + before.size()));
  };
  const int64_t single = needed({1});
  EXPECT_GT(single, 0);
  EXPECT_LE(needed({1, 2, 4, 8}), single);
}

TEST(Plan, WhereNothingFitsTheNearestThatWorksIsSaid) {
  const auto with = [](int64_t bytes) {
    return plan(make_on_meta(), {on_meta(64)}, small(2).memory(bytes));
  };
  std::string message;
  try {
    with(10'000);
    FAIL() << "it fits";
  } catch (const c10::ValueError& error) {
    message = error.what_without_backtrace();
  }
  EXPECT_THAT(message,
              AllOf(HasSubstr("fits on 2 devices of 10000 bytes"), HasSubstr("the closest (")));
  const size_t open = message.find("at least that (");
  ASSERT_NE(open, std::string::npos) << message;
  const int64_t needed = std::stoll(message.substr(open + std::string("at least that (").size()));
  EXPECT_GT(needed, 10'000);
  for (const PlannedDevice& device : with(needed).plan.devices) {
    EXPECT_LE(device.reserved, needed);
  }
}

TEST(Plan, AModelThatIsMeasuredIsLeftAsItWasAndItsPlanRuns) {
  nn::Sequential model = make();
  const at::Tensor sample = at::rand({16, 64});
  const PlanReport measured =
      plan(model, {sample},
           small(2).timeout(1e-9).make(make).device_type(c10::kCPU).schedules({"1f1b", "zb-h1"}));
  EXPECT_THAT(measured.plan.profiled_on, Not(HasSubstr("nominal")));
  EXPECT_TRUE(measured.explanation.halves_measured);
  EXPECT_TRUE(measured.memory_planned);
  EXPECT_EQ(measured.plan.devices[0].reserved, -1)
      << "without a CUDA device nothing is reserved by CUDA's allocator";
  for (const at::Tensor& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
  GPipe pipe(model, pipe_options(measured.plan));
  const LossFn sum = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); };
  pipe->step({sample}, {}, sum, step_options(measured.plan));

  const PlanReport predicted =
      plan(model, {sample}, small(2).timeout(1e-9).schedules({"1f1b"}).stages_per_device({1}));
  EXPECT_FALSE(predicted.memory_planned);
  EXPECT_THAT(predicted.proof.problems, IsEmpty());
  EXPECT_THAT(to_text(predicted), HasSubstr("was not planned, only predicted"));
}

TEST(Plan, ProfilesThatAreThereAreTaken) {
  Profile slow = profile_on_meta(make_on_meta(), {on_meta(4)});
  for (LayerProfile& layer : slow.layers) {
    layer.forward = layer.backward = 5;
    layer.split.reset();
  }
  const PlanReport found =
      plan(make_on_meta(), {on_meta(8)}, PlanOptions(2).chunks({2}).profiles({slow}));
  EXPECT_GE(found.plan.step, 2 * 60);
}

nn::Sequential norms() {
  nn::Sequential model;
  for (int k = 0; k < 6; ++k) {
    model->push_back(nn::Linear(64, 64));
    model->push_back(nn::BatchNorm1d(64));
  }
  return model;
}

TEST(Plan, DeferredBatchNormsAreInProfileAndMemoryAndThePipelinesOptions) {
  const MetaScope scope;
  const nn::Sequential model = norms();
  const auto with = [&](bool deferred, const std::vector<Profile>& profiles = {}) {
    return plan(model, {on_meta(64)},
                PlanOptions(2)
                    .chunks({4})
                    .schedules({"1f1b"})
                    .stages_per_device({1})
                    .profiles(profiles)
                    .deferred_batch_norm(deferred));
  };
  const PlanReport plain = with(false);
  const PlanReport deferred = with(true);
  EXPECT_FALSE(plain.plan.deferred_batch_norm);
  EXPECT_TRUE(deferred.plan.deferred_batch_norm);
  EXPECT_GT(deferred.plan.step, plain.plan.step);
  EXPECT_GT(deferred.plan.devices[0].live, plain.plan.devices[0].live);
  EXPECT_THAT(deferred.proof.problems, IsEmpty());
  EXPECT_THAT(to_text(deferred), HasSubstr("batch norms deferred"));
  EXPECT_THAT(to_text(plain), Not(HasSubstr("deferred")));
  EXPECT_TRUE(pipe_options(deferred.plan).deferred_batch_norm());

  const auto profile = [&](bool is) {
    return profile_on_meta(model, {on_meta(16)}, NominalDevice(), {}, is);
  };
  EXPECT_EQ(with(true, {profile(true)}).plan, deferred.plan);
  EXPECT_THAT([&] { with(true, {profile(false)}); },
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("was made without deferred batch norms, but the plan with them"),
                        HasSubstr("leave PlanOptions::deferred_batch_norm"))));
  EXPECT_THAT([&] { with(false, {profile(true)}); },
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("was made with deferred batch norms, but the plan without them"),
                        HasSubstr("--deferred_batch_norm in the command"))));
}

// Times and bytes of a profile under bfloat16 are not valid for a plan without autocast.
TEST(Plan, AProfileUnderAnotherGuardOfAutocastIsRefused) {
  const auto with = [](const Profile& profile) {
    return plan(make_on_meta(), {on_meta(8)}, PlanOptions(2).chunks({2}).profiles({profile}));
  };
  const Profile plain = profile_on_meta(make_on_meta(), {on_meta(4)});
  EXPECT_EQ(plain.autocast, "");
  std::optional<testing::AutocastScope> guard(std::in_place, c10::kCUDA, at::kBFloat16);
  const Profile cast = profile_on_meta(make_on_meta(), {on_meta(4)});
  EXPECT_EQ(cast.autocast, "bfloat16");
  EXPECT_NE(cast.layers[0].kept, plain.layers[0].kept);
  EXPECT_EQ(with(cast).plan.autocast, "bfloat16");
  EXPECT_THAT(to_text(with(cast)), HasSubstr("autocast    bfloat16"));
  EXPECT_THAT([&] { with(plain); }, ThrowsMessage<c10::ValueError>(HasSubstr(
                                        "one without autocast, but the plan is made under "
                                        "autocast to bfloat16 (for devices of type cuda)")));
  guard.reset();
  EXPECT_THAT(
      [&] { with(cast); },
      ThrowsMessage<c10::ValueError>(
          AllOf(HasSubstr("one under autocast to bfloat16, but the plan is made without autocast"),
                HasSubstr("--autocast=bfloat16"))));
  // The guard is for the CPU, where the profile would be measured. The plan is for GPUs, so no
  // guard holds for it.
  guard.emplace(c10::kCPU, at::kBFloat16);
  EXPECT_THAT(
      [] {
        plan(make(), {at::rand({16, 64})}, small(2).timeout(1e-9).make(make));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("for devices of type cuda")));
}

// All forwards come before all backwards, so that there is much to hold and time for copies. The
// input has so many rows that LibTorch's allocator takes it no larger block than it needs.
constexpr int64_t kManyRows = 65536;
PlanOptions fill_drain() {
  return PlanOptions(2).chunks({16}).schedules({"fill-drain"}).stages_per_device({1});
}

PlanReport with_link(PlanOptions options) {
  ExplainOptions machine;
  machine.host_bandwidth = 1e13;
  return plan(make_on_meta(), {on_meta(kManyRows)}, options.machine(machine));
}

int64_t most_reserved(const PlanReport& report) {
  int64_t most = 0;
  for (const PlannedDevice& device : report.plan.devices) most = std::max(most, device.reserved);
  return most;
}

TEST(Plan, OffloadsAreForWhatDoesNotFitOtherwise) {
  const PlanOptions never = fill_drain().checkpoints({Checkpoint::kNever});
  const PlanReport free = with_link(never);
  EXPECT_EQ(free.plan.schedule, without_offloads(free.plan.schedule)) << "it fits without";
  EXPECT_THAT(free.pinned, IsEmpty());
  EXPECT_THAT(to_text(free), HasSubstr("  offloads    none: there is no limit of memory"));
  EXPECT_THAT(to_json(free), Not(HasSubstr("offload")));
  const PlanReport fits = with_link(PlanOptions(never).memory(most_reserved(free)));
  EXPECT_THAT(to_text(fits), HasSubstr("  offloads    none: it fits without"));
  EXPECT_EQ(fits.plan.schedule, free.plan.schedule);

  const PlanReport low = with_link(PlanOptions(never).least_memory(0.0));
  EXPECT_EQ(without_offloads(low.plan.schedule), free.plan.schedule);
  EXPECT_DOUBLE_EQ(low.plan.step, free.plan.step);
  const int64_t limit = most_reserved(low);
  EXPECT_LT(limit, most_reserved(free) * 3 / 4);

  EXPECT_THROW(plan(make_on_meta(), {on_meta(kManyRows)}, PlanOptions(never).memory(limit)),
               c10::ValueError);
  const PlanReport tight = with_link(PlanOptions(never).memory(limit));
  EXPECT_NE(tight.plan.schedule, without_offloads(tight.plan.schedule));
  EXPECT_LE(most_reserved(tight), limit);
  EXPECT_THAT(tight.proof.problems, IsEmpty());
  EXPECT_NEAR(tight.proof.reload_wait, 0, 1e-9 * tight.plan.step);
  EXPECT_THAT(tight.pinned, SizeIs(2));
  EXPECT_THAT(to_text(tight), Not(HasSubstr("offloads    none")));
  EXPECT_THAT(to_text(tight),
              AllOf(HasSubstr("cells wait on the host, in"), HasSubstr("pinned memory"),
                    HasSubstr("actions wait for copies to the host and back: never")));
  EXPECT_GT(tight.examined, 0);
  EXPECT_THAT(to_json(tight), AllOf(HasSubstr("\"offloads\""), HasSubstr("\"reload_wait\"")));
  EXPECT_EQ(plan_from_text(plan_to_text(tight.plan), "f"), tight.plan);
  EXPECT_THAT([&] { with_link(PlanOptions(never).memory(limit / 2)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("cells on the host; balance")));
}

TEST(Plan, OffloadsAreTakenWhereTheyAreFasterThanRecomputes) {
  const PlanReport always = with_link(fill_drain().checkpoints({Checkpoint::kAlways}));
  const PlanReport low =
      with_link(fill_drain().checkpoints({Checkpoint::kNever}).least_memory(0.0));
  const int64_t limit = std::max(most_reserved(always), most_reserved(low));  // both fit
  const PlanReport recomputes =
      plan(make_on_meta(), {on_meta(kManyRows)}, fill_drain().memory(limit));
  const PlanReport faster = with_link(fill_drain().memory(limit));
  EXPECT_LT(faster.plan.step, recomputes.plan.step);
  ASSERT_THAT(faster.others, Not(IsEmpty()));
  EXPECT_EQ(faster.others.front().step, recomputes.plan.step);
}

// The first device has the most activations, and the last one the most memory: its parameters.
nn::Sequential heavy_end() {
  const MetaScope scope;
  nn::Sequential model;
  for (int k = 0; k < 12; ++k) model->push_back(nn::Tanh());
  model->push_back(nn::Linear(1024, 4096));
  model->push_back(nn::Linear(4096, 64));
  return model;
}

TEST(Plan, OffloadsTakeNoTimeForNoLowerPeak) {
  ExplainOptions machine;
  machine.host_bandwidth = 5e9;
  const at::Tensor sample = at::empty({512, 1024}, at::TensorOptions().device(at::kMeta));
  const PlanOptions options = fill_drain().checkpoints({Checkpoint::kNever}).machine(machine);
  std::optional<PlanReport> last;
  int lower = 0, same = 0;
  for (const double more_time : {0.0, 0.1, 0.5, 2.0, 100.0}) {
    PlanReport report = plan(heavy_end(), {sample}, PlanOptions(options).least_memory(more_time));
    ASSERT_GT(report.plan.devices[1].live, report.plan.devices[0].live);
    if (last) {
      const int64_t before = last->plan.devices[1].live, now = report.plan.devices[1].live;
      EXPECT_LE(now, before) << more_time;
      if (now == before) {
        EXPECT_LE(report.plan.step, last->plan.step) << more_time;
      }
      ++(now < before ? lower : same);
    }
    last = std::move(report);
  }
  EXPECT_GT(lower, 0);
  EXPECT_GT(same, 0);
}

TEST(Plan, OffloadsTakeAsMuchOfTheHostAsTheyMay) {
  const PlanOptions least = fill_drain().checkpoints({Checkpoint::kNever}).least_memory(0.0);
  const PlanReport low = with_link(least);
  const int64_t most = *std::max_element(low.pinned.begin(), low.pinned.end());
  EXPECT_EQ(with_link(PlanOptions(least).host_memory(most)).plan, low.plan);
  const PlanReport some = with_link(PlanOptions(least).host_memory(most / 2));
  EXPECT_THAT(some.pinned, Each(AllOf(Gt(most / 4), Le(most / 2))));
  EXPECT_GT(most_reserved(some), most_reserved(low));
  const PlanReport none = with_link(PlanOptions(least).host_memory(1));
  EXPECT_THAT(to_text(none), HasSubstr("none: within the limits of time and of the host's memory"));
  EXPECT_EQ(none.plan.schedule, without_offloads(low.plan.schedule));
  EXPECT_GT(most_reserved(none), most_reserved(some));
}

TEST(Plan, TextAndJsonSayWhatWasChosen) {
  PlanReport report = plan(make_on_meta(), {on_meta(64)}, small(3).memory(int64_t{1} << 30));
  report.plan.model = "twelve";
  const std::string text = to_text(report);
  for (const char* part : {"twelve, 64 rows on 3 devices of 1.00 GiB", "The next best",
                           "The choice with one thing replaced", "Proof", "no deadlock",
                           "no step of these rows on 3 such devices", "predictions"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 80) << text.substr(begin, end - begin);
  }
  EXPECT_EQ(plan_from_json(plan_to_json(report.plan), "f"), report.plan);
  EXPECT_THAT(to_json(report), AllOf(HasSubstr("\"alternatives\""), HasSubstr("\"gpipe plan\"")));
}

// PlanOptions::machine says which of its values are used. Slowness is not: all devices are alike.
TEST(Plan, TheMachinesSlownessIsNotUsed) {
  const PlanOptions two_stages = small(2).stages_per_device({1});
  const PlanReport without = plan(make_on_meta(), {on_meta(64)}, two_stages);
  for (const std::vector<double>& slowness : {std::vector<double>{1}, std::vector<double>{1, 2}}) {
    ExplainOptions machine;
    machine.slowness = slowness;
    const PlanReport report =
        plan(make_on_meta(), {on_meta(64)}, PlanOptions(two_stages).machine(machine));
    EXPECT_EQ(report.plan, without.plan);
    EXPECT_EQ(report.explanation.step, report.plan.step);
  }
}

TEST(Plan, ProgressMayEndIt) {
  struct Stop {};
  int calls = 0;
  EXPECT_THROW(plan(make_on_meta(), {on_meta(16)}, small(2).progress([&](const std::string&) {
                 if (++calls == 3) throw Stop();
               })),
               Stop);
  EXPECT_EQ(calls, 3);
}

// Only what plan() itself refuses is a c10::ValueError. During "search" the callback is called
// where an order that does not fit is passed over.
TEST(Plan, ExceptionsOfUsersCodeAreTheirOwn) {
  const std::invalid_argument mine("mine");
  for (const char* const last : {"searching", "1f1b", "search", "planning memory, plan 1"}) {
    EXPECT_THAT(
        [&] {
          plan(make_on_meta(), {on_meta(8)},
               PlanOptions(2).chunks({4}).progress([&](const std::string& note) {
                 if (note == last) throw mine;
               }));
        },
        ThrowsMessage<std::invalid_argument>("mine"))
        << last;
  }
  EXPECT_THAT(
      [&] {
        plan(make_on_meta(), {on_meta(8)},
             PlanOptions(2).chunks({4}).loss(
                 [&](const Tensors&, const Tensors&) -> at::Tensor { throw mine; }));
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("mine")));
}

TEST(Plan, MistakesAreNamed) {
  const auto message = [](const PlanOptions& options) {
    std::string text = "none";
    try {
      plan(make_on_meta(), {on_meta(8)}, options);
    } catch (const c10::ValueError& error) {
      text = error.what_without_backtrace();
    }
    return text;
  };
  EXPECT_THAT(message(PlanOptions(0)), HasSubstr("devices must be at least 1, got 0"));
  EXPECT_THAT(message(PlanOptions(13)), HasSubstr("give 12 devices or fewer"));
  EXPECT_THAT(message(PlanOptions(2).memory(-1)), HasSubstr("at least 0 bytes, got -1"));
  ExplainOptions link;
  link.host_bandwidth = 1e9;
  EXPECT_THAT(message(PlanOptions(2).machine(link).device_type(c10::kCPU)),
              HasSubstr("machine.host_bandwidth is 1e+09, but the plan is for CPUs"));
  EXPECT_THAT(message(PlanOptions(2).least_memory(0.1)), HasSubstr("give machine.host_bandwidth"));
  EXPECT_THAT(message(PlanOptions(2).machine(link).least_memory(-0.1)),
              HasSubstr("least_memory must be finite and at least 0, got -0.1"));
  EXPECT_THAT(message(PlanOptions(2).host_memory(1)), HasSubstr("give machine.host_bandwidth"));
  EXPECT_THAT(message(PlanOptions(2).machine(link).host_memory(-1)),
              HasSubstr("host_memory must be at least 0 bytes, got -1"));
  // A profile says too little of what stays.
  EXPECT_THAT(
      [&] {
        plan(make(), {at::rand({64, 64})}, PlanOptions(2).machine(link));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("give `make`, too")));
  EXPECT_THAT(message(PlanOptions(2).chunks({9})), HasSubstr("expected 1 to the 8 rows"));
  // Rooms without LibTorch find these, and throw std::invalid_argument.
  EXPECT_THAT(message(PlanOptions(2).schedules({"1f2b"})), HasSubstr("1f2b"));
  EXPECT_THAT(message(PlanOptions(2).stages_per_device({0})), HasSubstr("stages_per_device has 0"));
  EXPECT_THAT(message(PlanOptions(2).schedules({"1f1b"}).stages_per_device({2})),
              HasSubstr("no schedule to choose from"));
  ExplainOptions backwards;
  backwards.bandwidth = -1;
  EXPECT_THAT(message(PlanOptions(2).machine(backwards)), HasSubstr("bandwidth"));
  EXPECT_THAT(bytes_text((int64_t{1} << 30) + 1), HasSubstr("1.01 GiB"))
      << "bytes are rounded up, so that the text never shows less than are needed";
  EXPECT_EQ(bytes_text(900), "900 bytes");
}

}  // namespace
}  // namespace gpipe::balance
