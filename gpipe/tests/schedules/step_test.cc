// Tests GPipe::step: refused arguments, schedules, outputs, events. transparency_test tests the
// numbers.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <utility>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

at::Tensor mse(const Tensors& outputs, const Tensors& targets) {
  return nn::functional::mse_loss(outputs[0], targets[0]);
}

// Tests with a pipeline of three stages, and four micro-batches of two rows.
class GPipeStep : public ::testing::Test {
 protected:
  GPipeStep()
      : pipe(nn::Sequential(nn::Linear(4, 5), nn::Tanh(), nn::Linear(5, 5), nn::Linear(5, 3)),
             GPipeOptions({1, 2, 1}).devices({3, c10::Device(c10::kCPU)}).chunks(4)) {}

  auto step(const StepOptions& options) {
    return [this, options] { pipe->step(inputs, targets, mse, options); };
  }

  GPipe pipe;
  Tensors inputs = {torch::rand({8, 4})};
  Tensors targets = {torch::rand({8, 3})};
};

TEST_F(GPipeStep, RefusesToRunWithoutGradMode) {
  torch::NoGradGuard no_grad;
  EXPECT_THAT(step({}), ThrowsMessage<c10::ValueError>(
                            AllOf(HasSubstr("NoGradGuard"), HasSubstr("forward"))));
}

TEST_F(GPipeStep, RefusesALossThatIsNotANumber) {
  EXPECT_THAT(([&] {
                pipe->step(inputs, targets,
                           [](const Tensors& o, const Tensors&) { return o[0].sum(1); });
              }),
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("one number"), HasSubstr("[2]"))));
  EXPECT_THAT(([&] {
                pipe->step(inputs, targets,
                           [](const Tensors&, const Tensors&) { return at::Tensor(); });
              }),
              ThrowsMessage<c10::ValueError>(HasSubstr("an undefined tensor")));
  EXPECT_THAT(([&] { pipe->step(inputs, targets, nullptr); }),
              ThrowsMessage<c10::ValueError>(HasSubstr("empty loss function")));
  EXPECT_NO_THROW(step({})());
}

TEST_F(GPipeStep, RefusesALossThatNeedsNoGradient) {
  const auto refused =
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("needs no gradient"), HasSubstr("detached")));
  EXPECT_THAT(([&] {
                pipe->step(inputs, targets, [](const Tensors& o, const Tensors& t) {
                  return mse({o[0].detach()}, t);
                });
              }),
              refused);
  for (auto& parameter : pipe->parameters()) parameter.requires_grad_(false);
  EXPECT_THAT(step({}), refused);
  inputs[0].requires_grad_();
  EXPECT_NO_THROW(step({})());
  EXPECT_TRUE(inputs[0].grad().defined());
}

TEST_F(GPipeStep, RefusesTargetsOfAnotherBatchSize) {
  targets = {torch::rand({6, 3})};
  EXPECT_THAT(step({}), ThrowsMessage<c10::ValueError>(
                            AllOf(HasSubstr("targets have 6"), HasSubstr("inputs have 8"))));
  targets = {torch::rand({8, 3}), torch::rand({7})};
  EXPECT_THAT(step({}), ThrowsMessage<c10::ValueError>(
                            AllOf(HasSubstr("target 1 has 7"), HasSubstr("target 0 has 8"))));
  EXPECT_THROW(pipe->step({}, targets, mse), c10::ValueError);
}

TEST_F(GPipeStep, TargetsAreOptionalAndMayBeSeveral) {
  const StepResult none =
      pipe->step(inputs, {}, [](const Tensors& outputs, const Tensors& targets) {
        EXPECT_THAT(targets, IsEmpty());
        return outputs[0].mean();
      });
  // The mean of the micro-batches' means is rounded differently from the mean of the mini-batch.
  EXPECT_NEAR(none.loss, pipe->forward(inputs[0]).mean().item<double>(), 1e-6);
  pipe->step(inputs, {torch::arange(8), torch::rand({8, 3})},
             [](const Tensors& outputs, const Tensors& targets) {
               EXPECT_EQ(targets.size(), 2u);
               EXPECT_EQ(targets[0].size(0), 2);
               return mse(outputs, {targets[1]});
             });
}

TEST_F(GPipeStep, ATargetThatCannotBeCutServesASingleMicroBatch) {
  GPipe whole(nn::Sequential(nn::Linear(4, 3)), GPipeOptions({1}).devices({c10::kCPU}));
  auto dense_mse = [](const Tensors& outputs, const Tensors& targets) {
    return mse(outputs, {targets[0].to_dense()});
  };
  const double want = whole->step(inputs, targets, mse).loss;
  EXPECT_EQ(whole->step(inputs, {targets[0].to_sparse()}, dense_mse).loss, want);
}

TEST_F(GPipeStep, RefusesAFixedScheduleThatDoesNotFit) {
  EXPECT_THAT(step(StepOptions().schedule(Schedule::gpipe(2, 4))),
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("2 stages"), HasSubstr("the pipeline has 3"))));
  EXPECT_THAT(
      step(StepOptions().schedule(Schedule::gpipe(3, 8))),
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("8 micro-batches"), HasSubstr("gives 4"),
                                           HasSubstr("ScheduleGenerator"))));
  // A ScheduleGenerator gets the actual number of micro-batches.
  inputs = {torch::rand({2, 4})};
  targets = {torch::rand({2, 3})};
  std::vector<int64_t> asked;
  EXPECT_NO_THROW(step(StepOptions().schedule([&](int64_t stages, int64_t micro_batches) {
    asked = {stages, micro_batches};
    return Schedule::gpipe(stages, micro_batches);
  }))());
  EXPECT_THAT(asked, ::testing::ElementsAre(3, 2));
}

TEST_F(GPipeStep, RefusesAScheduleThatCannotRun) {
  std::string text = Schedule::one_f_one_b(3, 4).to_text();
  const size_t position = text.find(" B1.2");
  ASSERT_NE(position, std::string::npos);
  std::string incomplete = text;
  incomplete.erase(position, 5);
  EXPECT_THAT(step(StepOptions().schedule(Schedule::from_text(incomplete))),
              ThrowsMessage<c10::ValueError>(HasSubstr("cannot be run")));
  std::string half = text;
  half.replace(position, 5, " I1.2");
  EXPECT_THAT(step(StepOptions().schedule(Schedule::from_text(half))),
              ThrowsMessage<c10::ValueError>(HasSubstr("W1.2 is missing")));
  EXPECT_THAT(
      step(StepOptions().schedule(Schedule::from_text(
          "stages 3\nmicro_batches 1\nworker 0: F0.0 F1.0 B1.0 B0.0\nworker 1: F2.0 B2.0\n"))),
      ThrowsMessage<c10::ValueError>(HasSubstr("micro-batches")));
  EXPECT_NO_THROW(step({})());
}

TEST_F(GPipeStep, RunsTheScheduleItIsGiven) {
  std::mt19937_64 random = testing::test_random();
  std::vector<Schedule> schedules = {Schedule::gpipe(3, 4), Schedule::one_f_one_b(3, 4)};
  for (int k = 0; k < 10; ++k) {
    schedules.push_back(testing::random_schedule(3, 4, testing::MicroBatchOrder::kAny, random));
  }
  for (const Schedule& schedule : schedules) {
    std::mutex mutex;
    std::vector<std::vector<Action>> begun(schedule.workers()), ended(schedule.workers());
    step(StepOptions().schedule(schedule).on_event([&](const Event& event) {
      std::lock_guard<std::mutex> lock(mutex);
      auto& log = event.edge == Event::Edge::kBegin ? begun : ended;
      log.at(event.worker).push_back(event.action);
    }))();
    EXPECT_EQ(begun, schedule.table()) << schedule.to_text();
    EXPECT_EQ(ended, schedule.table()) << schedule.to_text();
  }
}

TEST_F(GPipeStep, EventsRespectWhatEachActionWaitsFor) {
  std::mutex mutex;
  std::vector<Event> events;
  step(StepOptions().on_event([&](const Event& event) {
    std::lock_guard<std::mutex> lock(mutex);
    events.push_back(event);
  }))();
  ASSERT_EQ(events.size(), 2u * 2 * 3 * 4);
  auto time_of = [&](Event::Edge edge, ActionKind kind, int stage, int micro_batch) {
    for (const Event& event : events) {
      if (event.edge == edge && event.action == Action{kind, stage, micro_batch}) return event.time;
    }
    ADD_FAILURE() << "no such event";
    return std::chrono::steady_clock::time_point();
  };
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j + 1 < 3; ++j) {
      EXPECT_LE(time_of(Event::Edge::kEnd, ActionKind::kForward, j, i),
                time_of(Event::Edge::kEnd, ActionKind::kForward, j + 1, i));
      EXPECT_LE(time_of(Event::Edge::kBegin, ActionKind::kForward, j, i),
                time_of(Event::Edge::kBegin, ActionKind::kForward, j + 1, i));
      EXPECT_LE(time_of(Event::Edge::kBegin, ActionKind::kBackward, j + 1, i),
                time_of(Event::Edge::kBegin, ActionKind::kBackward, j, i));
    }
  }
}

TEST_F(GPipeStep, EventsTellRecomputesAndRuns) {
  using std::chrono::steady_clock;
  const auto events_under = [&](Checkpoint mode) {
    pipe = GPipe(
        nn::Sequential(nn::Linear(4, 5), nn::Tanh(), nn::Linear(5, 5), nn::Linear(5, 3)),
        GPipeOptions({1, 2, 1}).devices({3, c10::Device(c10::kCPU)}).chunks(4).checkpoint(mode));
    std::mutex mutex;
    std::vector<Event> events;
    step(StepOptions().on_event([&](const Event& event) {
      std::lock_guard<std::mutex> lock(mutex);
      events.push_back(event);
    }))();
    return events;
  };
  int64_t run = -1;
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    const std::vector<Event> events = events_under(mode);
    ASSERT_EQ(events.size(), 2u * 2 * 3 * 4);
    EXPECT_GT(events.front().run, run);
    run = events.front().run;
    std::vector<steady_clock::time_point> begun(3);
    for (const Event& event : events) {
      EXPECT_EQ(event.run, run);
      if (event.edge == Event::Edge::kBegin) begun[event.worker] = event.time;
      // Under 1F1B the last stage runs each backward right after its forward, so kExceptLast
      // recomputes nothing there.
      const bool recomputed =
          event.edge == Event::Edge::kEnd && event.action.kind == ActionKind::kBackward &&
          (mode == Checkpoint::kAlways || (mode == Checkpoint::kExceptLast && event.worker != 2));
      EXPECT_EQ(event.recompute_begin < event.recompute_end, recomputed) << event.action.to_text();
      if (!recomputed) continue;
      EXPECT_GE(event.recompute_begin, begun[event.worker]);
      EXPECT_LE(event.recompute_end, event.time);
    }
  }
}

TEST_F(GPipeStep, KeepsOutputsOnlyWhereAsked) {
  const StepResult without = pipe->step(inputs, targets, mse);
  EXPECT_THAT(without.outputs, IsEmpty());
  const StepResult with = pipe->step(inputs, targets, mse, StepOptions().keep_outputs(true));
  ASSERT_EQ(with.outputs.size(), 1u);
  EXPECT_FALSE(with.outputs[0].requires_grad());
  EXPECT_THAT(with.outputs[0], EqualsBitwise(pipe->forward(inputs[0])));
  EXPECT_EQ(with.loss, without.loss);
}

// A loss of scalar outputs, such as the square of their difference to a target, is not the loss of
// the mini-batch's output, whatever the weights of the micro-batches are.
TEST_F(GPipeStep, ScalarOutputsOfSeveralMicroBatchesAreRefusedBeforeAnyGradientIsAdded) {
  struct SumImpl : nn::Module {
    at::Tensor forward(at::Tensor x) { return x.sum(); }
  };
  nn::Sequential model(nn::Linear(4, 2));
  model->push_back(std::make_shared<SumImpl>());
  GPipe sum(model, GPipeOptions({1, 1}).devices({2, c10::Device(c10::kCPU)}).chunks(4));
  auto first = [](const Tensors& outputs, const Tensors&) { return outputs[0]; };
  for (const bool keep : {true, false}) {
    EXPECT_THAT([&] { sum->step(inputs, {}, first, StepOptions().keep_outputs(keep)); },
                ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("output 0 of the model is a scalar"),
                                                     HasSubstr("one value for each row"))));
    for (const at::Tensor& p : sum->parameters()) EXPECT_FALSE(p.grad().defined());
  }
  GPipe whole(sum->sequential(), GPipeOptions({1, 1}).devices({2, c10::Device(c10::kCPU)}));
  EXPECT_NO_THROW(whole->step(inputs, {}, first));
}

// If sends had to wait for the receiver, stage 0 could not send micro-batch 0 before stage 1 takes
// it, but stage 1 takes micro-batch 1 first. Within one process no send waits, so the schedule
// runs.
TEST_F(GPipeStep, RunsAScheduleThatNeedsBufferedSends) {
  GPipe two(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 3)),
            GPipeOptions({1, 1}).devices({2, c10::Device(c10::kCPU)}).chunks(2));
  const Schedule schedule = Schedule::from_text(
      "stages 2\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0 B0.1\n"
      "worker 1: F1.1 F1.0 B1.0 B1.1\n");
  EXPECT_THROW(schedule.verify(), std::invalid_argument) << "the test is not about what it says";
  const double want = two->step(inputs, targets, mse).loss;
  EXPECT_EQ(two->step(inputs, targets, mse, StepOptions().schedule(schedule)).loss, want);
}

TEST_F(GPipeStep, TheLossIsTheMeanOverTheSamplesOfAnUnevenMiniBatch) {
  inputs = {torch::rand({7, 4})};
  targets = {torch::rand({7, 3})};
  const double expected = mse({pipe->forward(inputs[0])}, targets).item<double>();
  // The weighted mean of the micro-batches' means is rounded differently from the mean of the
  // mini-batch.
  EXPECT_NEAR(pipe->step(inputs, targets, mse).loss, expected, 1e-6);
}

TEST_F(GPipeStep, GradientsReachInputsThatHaveAHistory) {
  const at::Tensor leaf = torch::rand({8, 4}).requires_grad_();
  pipe->step({leaf * 2}, targets, mse);
  const at::Tensor other = leaf.detach().requires_grad_();
  mse({pipe->forward(other * 2)}, targets).backward();
  // One gradient is that of the mini-batch's loss, the other that of the micro-batches' weighted
  // losses. They are rounded differently.
  EXPECT_TRUE(torch::allclose(leaf.grad(), other.grad(), /*rtol=*/1e-5, /*atol=*/1e-7));
}

// Users count and collect data in their observer, so step() must not call a copy of it.
TEST_F(GPipeStep, TheObserverIsTheCallersOwnObject) {
  struct Counting {
    std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
    int events = 0;
    void operator()(const Event&) {
      std::lock_guard<std::mutex> lock(*mutex);
      ++events;
    }
  };
  StepOptions options;
  options.on_event(Counting());
  pipe->step(inputs, targets, mse, options);
  pipe->step(inputs, targets, mse, options);
  const auto* counting = options.on_event().target<Counting>();
  ASSERT_NE(counting, nullptr);
  EXPECT_EQ(counting->events, 2 * (3 * 4) * 2 * 2) << "steps, cells, F and B, begin and end";
}

// As for the outputs of forward(), a change of an output must not change anything else.
TEST(StepOutputs, OfASingleMicroBatchShareNoMemoryWithInputsOrParameters) {
  struct ParameterImpl : nn::Module {
    at::Tensor weight = register_parameter("weight", torch::rand({8, 4}));
    at::Tensor forward(const at::Tensor&) { return weight; }
  };
  const at::Tensor input = torch::rand({8, 4}).requires_grad_();
  const auto parameter = std::make_shared<ParameterImpl>();
  for (const bool identity : {true, false}) {
    nn::Sequential model;
    if (identity) {
      model->push_back(nn::Identity());
    } else {
      model->push_back(parameter);
    }
    GPipe pipe(model, GPipeOptions({1}).devices({c10::Device(c10::kCPU)}));
    const StepResult result =
        pipe->step({input}, {torch::rand({8, 4})}, mse, StepOptions().keep_outputs(true));
    const at::Tensor& given = identity ? input : parameter->weight;
    EXPECT_THAT(result.outputs[0], EqualsBitwise(given.detach()));
    EXPECT_FALSE(result.outputs[0].is_alias_of(given)) << (identity ? "the input" : "a parameter");
  }
}

}  // namespace
}  // namespace gpipe
