// Tests what a diagnosis finds in pipelines whose costs are known, and that it leaves no trace.
#include "diagnose/diagnose.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "command/other_load.h"
#include "diagnose/diagnosis_text.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/sequential.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/tied_product.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::cpus;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::layer;
using ::testing::ThrowsMessage;
using testing::TiedProduct;

constexpr double kMs = 1e-3;

// A layer that sleeps in its forward, and in its backward, for `each` seconds plus `row` seconds
// for each row. Sleeping needs no core, so the tests are reliable beside others.
auto sleeper(double row, double each = 0) {
  return layer<Tensor, Tensor>([=](const Tensor& x) {
    const std::chrono::duration<double> time(each + row * static_cast<double>(x.size(0)));
    std::this_thread::sleep_for(time);
    Tensor y = x * 1;
    y.register_hook([time](const Tensor&) { std::this_thread::sleep_for(time); });
    return y;
  });
}

Tensor sum(const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); }

Diagnosis diagnose_sleepers(const std::shared_ptr<nn::Module>& first,
                            const std::shared_ptr<nn::Module>& second, int64_t chunks,
                            Checkpoint mode, const std::vector<int64_t>& choices = {}) {
  using Layer = testing::FunctionImpl<Tensor, Tensor>;
  nn::Sequential model(nn::Linear(2, 2), std::dynamic_pointer_cast<Layer>(first),
                       std::dynamic_pointer_cast<Layer>(second));
  const GPipe pipe(model, GPipeOptions({2, 1}).devices(cpus(2)).chunks(chunks).checkpoint(mode));
  return diagnose(pipe, {at::rand({8, 2})}, {}, sum,
                  DiagnoseOptions().seconds(1e-3).cpu_cores(64).chunks(choices));
}

// The work of the partition that has least, as it was measured beside all that the machine does.
// Parts are compared with it, and not with the time of the sleeps alone.
double least_work(const Diagnosis& diagnosis) {
  return std::min(diagnosis.partitions.at(0).work, diagnosis.partitions.at(1).work);
}

const Advice* find(const Diagnosis& diagnosis, Change change) {
  for (const Advice& advice : diagnosis.advice) {
    if (advice.change == change) return &advice;
  }
  return nullptr;
}

void expect_exact_sum(const Diagnosis& diagnosis) {
  double sum = 0;
  for (const Part& part : diagnosis.parts) sum += part.seconds;
  EXPECT_EQ(sum, diagnosis.step - diagnosis.ideal);
}

TEST(Diagnose, FindsTheSlowStage) {
  const Diagnosis d = diagnose_sleepers(sleeper(3 * kMs), sleeper(12 * kMs), 8, Checkpoint::kNever);
  EXPECT_EQ(d.binding, 1);
  EXPECT_EQ(d.micro_batches, 8);
  EXPECT_EQ(d.workers, 2);
  EXPECT_TRUE(d.whole_batch);
  // The slow partition has 192 ms of the 240 ms of work, where 120 would be its share. So imbalance
  // costs about 72 ms.
  EXPECT_GT(d.seconds(Cause::kImbalance), 36 * kMs);
  EXPECT_LT(d.seconds(Cause::kImbalance), 216 * kMs);
  EXPECT_EQ(d.seconds(Cause::kRecompute), 0);
  EXPECT_EQ(d.seconds(Cause::kTransfers), 0);
  EXPECT_GT(d.seconds(Cause::kImbalance), d.seconds(Cause::kFillAndDrain));
  EXPECT_GT(d.partitions[1].work, 2 * d.partitions[0].work);
  EXPECT_EQ(d.setup.schedule.name, "1f1b");
  expect_exact_sum(d);
}

// A shared input is not cut: the model has a mask of one row, which all micro-batches get whole.
TEST(Diagnose, CutsNoSharedInputs) {
  nn::Sequential model(layer<Tensors, Tensors>([](const Tensors& values) {
                         return Tensors{values.at(0) * values.at(1), values.at(1)};
                       }),
                       layer<Tensors, Tensor>([](const Tensors& values) {
                         EXPECT_EQ(values.at(1).sizes(), c10::IntArrayRef({1, 2}));
                         return values.at(0) + values.at(1);
                       }),
                       nn::Linear(2, 2));
  const GPipe pipe(model, GPipeOptions({1, 2}).devices(cpus(2)).chunks(4).shared_inputs({1}));
  const Diagnosis d = diagnose(pipe, {at::rand({8, 2}), at::rand({1, 2})}, {}, sum,
                               DiagnoseOptions().seconds(1e-3).cpu_cores(64));
  EXPECT_EQ(d.rows, 8);
  EXPECT_EQ(d.micro_batches, 4);
  EXPECT_GT(d.step, 0);
  expect_exact_sum(d);
  GPipe followed(model, pipe_options(d.setup, cpus(2)));
  followed->step({at::rand({8, 2}), at::rand({1, 2})}, {}, sum, step_options(d.setup));
}

TEST(Diagnose, FindsFillAndDrain) {
  // The layers sleep long, so that it matters little if they wake up late.
  const Diagnosis d =
      diagnose_sleepers(sleeper(15 * kMs), sleeper(15 * kMs), 2, Checkpoint::kNever, {8});
  // Filling and draining take half as long as each worker's work.
  EXPECT_GT(d.seconds(Cause::kFillAndDrain), least_work(d) / 4);
  EXPECT_LT(d.seconds(Cause::kFillAndDrain), least_work(d));
  expect_exact_sum(d);
  const Advice* chunks = find(d, Change::kChunks);
  ASSERT_NE(chunks, nullptr);
  EXPECT_GT(chunks->setup.chunks, 2);
  EXPECT_GT(chunks->speed_up, 1.1);
  EXPECT_LT(chunks->step, d.step);
}

TEST(Diagnose, FindsRecomputes) {
  const Diagnosis d =
      diagnose_sleepers(sleeper(10 * kMs), sleeper(10 * kMs), 8, Checkpoint::kAlways, {8});
  // A recompute adds half of each partition's work, and a little of fill and drain.
  EXPECT_GT(d.seconds(Cause::kRecompute), least_work(d) / 4);
  EXPECT_LT(d.seconds(Cause::kRecompute), 1.125 * least_work(d));
  expect_exact_sum(d);
  const Advice* never = find(d, Change::kCheckpoints);
  ASSERT_NE(never, nullptr);
  EXPECT_THAT(never->setup.checkpoints, ::testing::Each(Checkpoint::kNever));
  EXPECT_GT(never->speed_up, 1.2);
  EXPECT_LT(never->speed_up, 1.8);
}

TEST(Diagnose, FindsSmallMicroBatches) {
  const Diagnosis d =
      diagnose_sleepers(sleeper(0, 5 * kMs), sleeper(0, 5 * kMs), 8, Checkpoint::kNever);
  // Small micro-batches make the work of each partition 80 ms instead of 10.
  EXPECT_GT(d.seconds(Cause::kSmallMicroBatches), 35 * kMs);
  EXPECT_GT(d.seconds(Cause::kSmallMicroBatches), 0.5 * (d.step - d.ideal));
  expect_exact_sum(d);
  const Advice* chunks = find(d, Change::kChunks);
  ASSERT_NE(chunks, nullptr);
  EXPECT_LE(chunks->setup.chunks, 2);
  EXPECT_GT(chunks->speed_up, 2);
}

TEST(Diagnose, KnowsWhetherSkipsAreDirect) {
  for (const bool direct : {true, false}) {
    const GPipe pipe(
        testing::convolutions_with_a_skip(),
        GPipeOptions({1, 1, 1}).devices(cpus(3)).chunks(2).ablation({direct, true, false}));
    const Diagnosis d =
        diagnose(pipe, {at::rand({4, 2, 16, 16})}, {}, sum, DiagnoseOptions().seconds(1e-3));
    EXPECT_EQ(d.setup.direct_skips, direct);
  }
}

TEST(Diagnose, APlacedPipelineIsToldWhatItRuns) {
  nn::Sequential model;
  for (int k = 0; k < 4; ++k) model->push_back(nn::Linear(2, 2));
  const Placement placement = Placement::loop(2, 2);
  const GPipe pipe(model,
                   GPipeOptions({1, 1, 1, 1}).devices(cpus(4)).chunks(4).placement(placement));
  const Diagnosis d = diagnose(pipe, {at::rand({8, 2})}, {}, sum, DiagnoseOptions().seconds(1e-3));
  EXPECT_EQ(d.workers, 2);
  EXPECT_EQ(d.setup.schedule.make(4, 4), interleaved(2, 2, 4));
  EXPECT_EQ(d.setup.schedule.name, "interleaved");
  for (const Advice& advice : d.advice) {
    EXPECT_NO_THROW(advice.setup.schedule.make(4, 4).check(placement))
        << advice.setup.schedule.name;
  }
}

// A layer whose two halves of the backward each take as long as its forward.
struct SleepingImpl : nn::Module {
  explicit SleepingImpl(double row) : row(row) {
    weight = register_parameter("weight", at::ones({2}));
  }
  Tensor forward(const Tensor& x) {
    const std::chrono::duration<double> time(row * static_cast<double>(x.size(0)));
    std::this_thread::sleep_for(time);
    const auto sleep = [time](const Tensor&) { std::this_thread::sleep_for(time); };
    // One hook sleeps in the backward's half for the weights, and one in the half for the inputs.
    Tensor scale = weight * 1;
    scale.register_hook(sleep);
    Tensor in = x * 1;
    if (in.requires_grad()) in.register_hook(sleep);
    return in * scale;
  }
  double row;
  Tensor weight;
};
TORCH_MODULE(Sleeping);

TEST(Diagnose, AdvisesSplitBackwardsWhereStagesWait) {
  nn::Sequential model(nn::Linear(2, 2), Sleeping(4 * kMs), Sleeping(4 * kMs), Sleeping(4 * kMs));
  const GPipe pipe(model, GPipeOptions({2, 1, 1}).devices(cpus(3)).chunks(4));
  const Diagnosis d = diagnose(pipe, {at::rand({4, 2})}, {}, sum,
                               DiagnoseOptions().seconds(1e-3).cpu_cores(64).chunks({4}));
  const Advice* schedule = find(d, Change::kSchedule);
  ASSERT_NE(schedule, nullptr) << to_text(d);
  // Stages wait for each other under 1F1B. ZB-H1 and ZB-H2 run weight gradients in these gaps, so
  // one of them is advised.
  EXPECT_THAT(schedule->setup.schedule.name, ::testing::StartsWith("zb-h"));
  EXPECT_GT(schedule->speed_up, 1.1);
  EXPECT_EQ(d.setup.schedule.name, "1f1b");
  // A step with the advised schedule is really shorter.
  const auto step = [&](const ScheduleGenerator& make) {
    GPipe(pipe)->step({at::rand({4, 2})}, {}, sum, StepOptions().schedule(make));
    const auto begin = std::chrono::steady_clock::now();
    GPipe(pipe)->step({at::rand({4, 2})}, {}, sum, StepOptions().schedule(make));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  EXPECT_LT(step(schedule->setup.schedule.make), step(Schedule::one_f_one_b));
}

TEST(Diagnose, InAVThoseOfAV) {
  nn::Sequential model;
  for (int k = 0; k < 4; ++k) model->push_back(nn::Linear(2, 2));
  const Placement placement = Placement::v_shape(2);
  const GPipe pipe(model,
                   GPipeOptions({1, 1, 1, 1}).devices(cpus(4)).chunks(4).placement(placement));
  const auto named = [&](const StepOptions& step) {
    const Diagnosis d =
        diagnose(pipe, {at::rand({4, 2})}, {}, sum, DiagnoseOptions().seconds(1e-4).step(step));
    for (const Advice& advice : d.advice) {
      const int64_t count = std::min<int64_t>(4, advice.setup.chunks);
      EXPECT_NO_THROW(advice.setup.schedule.make(4, count).check(placement))
          << advice.setup.schedule.name;
    }
    return d.setup.schedule.name;
  };
  EXPECT_EQ(named(StepOptions()), "dualpipe-v");
  EXPECT_EQ(named(StepOptions().schedule(schedule_by_name("zb-v"))), "zb-v");
}

TEST(Diagnose, MeasurementsThatContradictGiveNoAdvice) {
  // The second layer is slow if the first layer has run in the same thread before. So it is slow in
  // one stage, but not in the pipeline. Another program that comes and goes has the same effect.
  auto first_thread = std::make_shared<std::atomic<std::thread::id>>();
  nn::Sequential model(nn::Linear(2, 2), layer<Tensor, Tensor>([=](const Tensor& x) {
                         *first_thread = std::this_thread::get_id();
                         return x * 1;
                       }),
                       layer<Tensor, Tensor>([=](const Tensor& x) {
                         if (*first_thread == std::this_thread::get_id()) {
                           std::this_thread::sleep_for(std::chrono::milliseconds(20));
                         }
                         return x * 1;
                       }));
  const GPipe pipe(model, GPipeOptions({2, 1}).devices(cpus(2)).chunks(8));
  const Diagnosis d = diagnose(pipe, {at::rand({8, 2})}, {}, sum,
                               DiagnoseOptions().seconds(1e-3).cpu_cores(64).chunks({8}));
  EXPECT_GT(d.partitions[1].work, 1.25 * d.step);
  EXPECT_THAT(d.warning, HasSubstr("contradict each other"));
  EXPECT_TRUE(d.advice.empty());
  expect_exact_sum(d);
}

// If a child process computes on the only core that the test may use, the diagnosis has a warning
// and gives no advice.
TEST(Diagnose, ABusyMachineGivesNoAdvice) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const pid_t child = fork();
  if (child == 0) {
    while (true) std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  const command::OtherLoad load;
  nn::Sequential model(nn::Linear(256, 256), nn::Linear(256, 256));
  const GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).chunks(4));
  const Diagnosis d =
      diagnose(pipe, {at::rand({64, 256})}, {}, sum, DiagnoseOptions().seconds(0.3).chunks({4}));
  const bool known = load.shares().has_value();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  sched_setaffinity(0, sizeof all, &all);
  if (!known) GTEST_SKIP() << "/proc/stat counts nothing here";
  EXPECT_THAT(d.warning, HasSubstr("This machine was busy: other work had "));
  EXPECT_TRUE(d.advice.empty());
  EXPECT_THAT(to_text(d), HasSubstr("no advice from such measurements"));
  expect_exact_sum(d);
}

TEST(Diagnose, WithoutThePlainModelFewerMicroBatchesAreNotAdvised) {
  nn::Sequential model(nn::Linear(2, 2), sleeper(0, 3 * kMs));
  const GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).chunks(4));
  std::vector<std::string> told;
  const Diagnosis d = diagnose(pipe, {at::rand({8, 2})}, {}, sum,
                               DiagnoseOptions().seconds(1e-3).run_plain_model(false).progress(
                                   [&](const std::string& what, int64_t done, int64_t all) {
                                     EXPECT_EQ(done, static_cast<int64_t>(told.size()));
                                     EXPECT_LT(done, all);
                                     told.push_back(what);
                                   }));
  EXPECT_FALSE(d.whole_batch);
  EXPECT_EQ(std::count(told.begin(), told.end(), "layers, 8 rows"), 0);
  EXPECT_EQ(std::count(told.begin(), told.end(), "layers, 2 rows"), 1);
  for (const Advice& advice : d.advice) EXPECT_GE(advice.setup.chunks, 4);
  expect_exact_sum(d);
}

TEST(Diagnose, FewerRowsThanChunksAreAsManyMicroBatches) {
  nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2));
  const GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).chunks(8));
  const Diagnosis d = diagnose(pipe, {at::rand({3, 2})}, {}, sum, DiagnoseOptions().seconds(1e-3));
  EXPECT_EQ(d.micro_batches, 3);
  EXPECT_EQ(d.rows, 3);
  expect_exact_sum(d);
}

TEST(Diagnose, AnotherScheduleIsKnownByItsName) {
  nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2));
  const GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).chunks(4));
  const auto named = [&](const StepOptions& step) {
    return diagnose(pipe, {at::rand({4, 2})}, {}, sum, DiagnoseOptions().seconds(1e-4).step(step))
        .setup.schedule.name;
  };
  EXPECT_EQ(named(StepOptions().schedule(Schedule::gpipe)), "gpipe");
  EXPECT_EQ(named(StepOptions().schedule(Schedule::one_f_one_b(2, 4))), "1f1b");
  EXPECT_EQ(named(StepOptions().schedule(schedule_by_name("zb-h2"))), "zb-h2");
  // A schedule with both stages on one worker is called "sequential".
  EXPECT_EQ(named(StepOptions().schedule(sequential)), "sequential");
  // A sequential schedule whose last two micro-batches overlap has no name.
  EXPECT_EQ(named(StepOptions().schedule(Schedule::from_text(
                "stages 2\nmicro_batches 4\nworker 0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1 F0.2 "
                "F0.3 F1.2 F1.3 B1.2 B1.3 B0.2 B0.3\n"))),
            "as given");
}

// The state of a pipeline that must be the same after a diagnosis as before it.
struct State {
  explicit State(const GPipe& pipe)
      : generator_state(at::detail::getDefaultCPUGenerator().get_state()) {
    for (const Tensor& parameter : pipe->parameters()) {
      values.push_back(parameter.detach().clone());
      gradients.push_back(parameter.grad());
      gradient_values.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
    }
    for (const Tensor& buffer : pipe->buffers()) values.push_back(buffer.clone());
    for (const auto& module : pipe->modules()) modes.push_back(module->is_training());
  }
  Tensor generator_state;
  std::vector<Tensor> values, gradients, gradient_values;
  std::vector<bool> modes;
};

void expect_same(const State& now, const State& before) {
  EXPECT_THAT(now.generator_state, EqualsBitwise(before.generator_state));
  EXPECT_EQ(now.modes, before.modes);
  ASSERT_EQ(now.values.size(), before.values.size());
  for (size_t k = 0; k < now.values.size(); ++k) {
    EXPECT_THAT(now.values[k], EqualsBitwise(before.values[k])) << k;
  }
  for (size_t k = 0; k < now.gradients.size(); ++k) {
    EXPECT_TRUE(now.gradients[k].is_same(before.gradients[k])) << k;
    if (!now.gradients[k].defined()) continue;
    EXPECT_THAT(now.gradient_values[k], EqualsBitwise(before.gradient_values[k])) << k;
  }
}

class DiagnoseModels : public ::testing::TestWithParam<testing::SampleModel> {};

TEST_P(DiagnoseModels, LeavesNoTrace) {
  const testing::SampleModel& sample = GetParam();
  GPipe pipe(sample.make(), GPipeOptions({sample.layers - sample.layers / 2, sample.layers / 2})
                                .devices(cpus(2))
                                .chunks(3));
  const Tensors inputs = sample.inputs(7);
  const Tensors targets = sample.targets(7);
  pipe->step(inputs, targets, sample.loss);
  pipe->begin()->get()->eval();
  const State before(pipe);
  const Diagnosis d = diagnose(pipe, inputs, targets, sample.loss, DiagnoseOptions().seconds(1e-4));
  expect_same(State(pipe), before);
  expect_exact_sum(d);
  EXPECT_GT(d.step, 0);
  EXPECT_GT(d.partitions[0].memory, 0);

  const std::vector<Tensor> parameters = pipe->parameters();
  const auto stops = [](const std::string&, int64_t done, int64_t) {
    if (done == 2) throw std::runtime_error("enough");
  };
  EXPECT_THAT(
      [&] {
        diagnose(pipe, inputs, targets, sample.loss,
                 DiagnoseOptions().seconds(1e-4).progress(stops));
      },
      ThrowsMessage<std::runtime_error>("enough"));
  expect_same(State(pipe), before);
  const auto checked = [&](int64_t calls) {
    DiagnoseOptions options;
    options.seconds(1e-4).check([&calls] {
      if (--calls < 0) throw std::runtime_error("enough");
    });
    diagnose(pipe, inputs, targets, sample.loss, options);
  };
  for (const int64_t calls : {0, 1, 12}) {
    EXPECT_THAT([&] { checked(calls); }, ThrowsMessage<std::runtime_error>("enough"));
    expect_same(State(pipe), before);
  }
  pipe->step(inputs, targets, sample.loss);  // the pipeline is still usable
}

INSTANTIATE_TEST_SUITE_P(All, DiagnoseModels, ::testing::ValuesIn(testing::sample_models()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           name.erase(std::remove_if(name.begin(), name.end(),
                                                     [](unsigned char c) { return !isalnum(c); }),
                                      name.end());
                           return name;
                         });

TEST(Diagnose, InputsAndTargetsGetNoGradients) {
  nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2));
  const GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).chunks(2));
  const Tensor input = at::rand({4, 2}).requires_grad_();
  const Tensor target = at::rand({4, 2}).requires_grad_();
  diagnose(
      pipe, {input}, {target},
      [](const Tensors& outputs, const Tensors& targets) {
        return (outputs.at(0) - targets.at(0)).square().mean();
      },
      DiagnoseOptions().seconds(1e-4));
  EXPECT_FALSE(input.grad().defined());
  EXPECT_FALSE(target.grad().defined());
}

TEST(Diagnose, DeferredBatchNormsStatisticsAreAsBefore) {
  nn::Sequential model(nn::BatchNorm1d(2), nn::Linear(2, 2));
  const GPipe pipe(model,
                   GPipeOptions({1, 1}).devices(cpus(2)).chunks(2).deferred_batch_norm(true));
  const Tensor input = at::rand({4, 2});
  const State before(pipe);
  // Advice never has four micro-batches: they would have one row each, which a batch norm refuses.
  const Diagnosis diagnosis = diagnose(pipe, {input}, {}, sum, DiagnoseOptions().seconds(1e-4));
  for (const Advice& advice : diagnosis.advice) EXPECT_LT(advice.setup.chunks, 4);
  expect_same(State(pipe), before);
}

// With deferred batch norms the predicted memory includes the moments of the micro-batches, in
// double, which are kept until the mini-batch's end.
TEST(Diagnose, BatchNormsAreMeasuredAsThePipelineHasThem) {
  static constexpr int64_t kChannels = 4096;
  const auto memory = [](bool deferred) {
    nn::Sequential model(nn::Linear(2, kChannels), nn::BatchNorm1d(kChannels));
    const GPipe pipe(model,
                     GPipeOptions({2}).devices(cpus(1)).chunks(2).deferred_batch_norm(deferred));
    EXPECT_EQ(pipe->deferred_batch_norm(), deferred);
    return diagnose(pipe, {at::rand({8, 2})}, {}, sum, DiagnoseOptions().seconds(1e-4))
        .partitions.at(0)
        .memory;
  };
  EXPECT_GE(memory(true) - memory(false), 2 * kChannels * int64_t{sizeof(double)});
}

TEST(Diagnose, TiedWeightsMayBeAnywhere) {
  nn::Linear first(2, 2);
  nn::Sequential model(first, nn::Linear(2, 2), TiedProduct(first->weight));
  const GPipe pipe(model, GPipeOptions({1, 2}).devices(cpus(2)).chunks(2));
  const Tensor input = at::rand({4, 2});
  const State before(pipe);
  expect_exact_sum(diagnose(pipe, {input}, {}, sum, DiagnoseOptions().seconds(1e-4)));
  expect_same(State(pipe), before);
}

TEST(DiagnoseRefuses, WhatCannotBeDiagnosed) {
  nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2));
  const GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).chunks(2));
  const Tensor input = at::rand({4, 2});
  const auto run = [&](const Tensors& inputs, const LossFn& loss,
                       const DiagnoseOptions& options = DiagnoseOptions()) {
    return [=] { diagnose(pipe, inputs, {}, loss, DiagnoseOptions(options).seconds(1e-4)); };
  };
  const auto refuses = [](const std::string& text) {
    return ThrowsMessage<c10::ValueError>(HasSubstr(text));
  };
  const State before(pipe);
  EXPECT_THAT([&] { diagnose(GPipe(nullptr), {input}, {}, sum); }, refuses("empty module holder"));
  EXPECT_THAT(
      [&] {
        diagnose(GPipe(nn::Sequential(), GPipeOptions(std::vector<int64_t>())), {input}, {}, sum);
      },
      refuses("at least one layer"));
  EXPECT_THAT(run({input}, nullptr), refuses("empty loss function"));
  EXPECT_THAT(run({}, sum), refuses("no input tensor"));
  EXPECT_THAT(run({at::rand({0, 2})}, sum), refuses("0 rows"));
  EXPECT_THAT(run({input}, [](const Tensors&, const Tensors&) { return at::rand({}); }),
              refuses("gradient"));
  EXPECT_THAT(
      run({input}, sum, DiagnoseOptions().step(StepOptions().schedule(Schedule::gpipe(2, 3)))),
      refuses("micro-batches"));
  EXPECT_THAT(run({input}, sum, DiagnoseOptions().chunks({0})), refuses("at least 1, got 0"));
  EXPECT_THAT(run({input}, sum, DiagnoseOptions().schedules({{"none", nullptr}})),
              refuses("'none'"));
  EXPECT_THAT(run({input}, sum, DiagnoseOptions().memory_limit(-1)), refuses("memory_limit"));
  EXPECT_THAT(run({input}, sum, DiagnoseOptions().param_scale(-1)), refuses("param_scale"));
  // These scales are refused, because the bytes would overflow and then fit every limit.
  for (const double scale : {1e300, 1e18, 1.1e6, std::nan("")}) {
    EXPECT_THAT(run({input}, sum, DiagnoseOptions().param_scale(scale)), refuses("param_scale"));
  }
  bool measured = false;
  const auto begins = [&](const std::string&, int64_t, int64_t) { measured = true; };
  EXPECT_THAT(run({input}, sum, DiagnoseOptions().keep_together({{0, 1}}).progress(begins)),
              refuses("keep_together leaves 1 piece of 2 layers for 2 partitions"));
  EXPECT_THAT(run({input}, sum, DiagnoseOptions().keep_together({{1, 2}}).progress(begins)),
              refuses("keep_together has layers 1 to 2"));
  EXPECT_FALSE(measured);
  EXPECT_THAT(run({input}, sum, DiagnoseOptions().cpu_cores(-1)), refuses("cpu_cores"));
  EXPECT_THAT([&] { diagnose(pipe, {input}, {}, sum, DiagnoseOptions().seconds(0)); },
              refuses("seconds"));
  {
    const c10::NoGradGuard no_grad;
    EXPECT_THAT(run({input}, sum), refuses("gradients are switched off"));
  }
  expect_same(State(pipe), before);
}

TEST(DiagnoseRefuses, AnErrorOfALayerComesThrough) {
  nn::Sequential model(nn::Linear(2, 2), layer<Tensor, Tensor>([](const Tensor&) -> Tensor {
                         throw std::runtime_error("broken");
                       }));
  const GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).chunks(2));
  const Tensor input = at::rand({4, 2});
  const State before(pipe);
  EXPECT_THAT([&] { diagnose(pipe, {input}, {}, sum); },
              ThrowsMessage<std::runtime_error>(HasSubstr("broken")));
  expect_same(State(pipe), before);
}

}  // namespace
}  // namespace gpipe
