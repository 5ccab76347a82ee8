// Tests steps whose schedules offload cells, on the fake accelerator: bits, memory, refusals and
// failures.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/allocator.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::fake::allocator;

constexpr int64_t kMicroBatches = 4;
constexpr int64_t kSide = 128;
constexpr int64_t kRows = 512;  // of a micro-batch, so that its activations are larger than weights

at::Tensor mean_of_squares(const Tensors& outputs, const Tensors& /*targets*/) {
  return outputs[0].pow(2).mean();
}

struct Subject {
  explicit Subject(Checkpoint mode = Checkpoint::kNever, torch::nn::Sequential layers = model(),
                   const std::vector<c10::Device>& devices = testing::devices(2),
                   bool deferred_batch_norm = false)
      : pipe(layers, GPipeOptions({8, static_cast<int64_t>(layers->size()) - 8})
                         .devices(devices)
                         .chunks(kMicroBatches)
                         .checkpoint(mode)
                         .deferred_batch_norm(deferred_batch_norm)) {
    testing::manual_seed(2);
    input = torch::randn({kMicroBatches * kRows, kSide}).to(pipe->devices().front());
  }

  static torch::nn::Sequential model() {
    testing::manual_seed(1);
    torch::nn::Sequential layers;
    for (int k = 0; k < 8; ++k) {
      layers->push_back(torch::nn::Linear(kSide, kSide));
      layers->push_back(torch::nn::Tanh());
    }
    return layers;
  }

  // Runs a step, and returns the loss and the gradients, which it takes from the parameters.
  Tensors train(const Schedule& schedule, const LossFn& loss_fn = mean_of_squares) {
    const double loss = pipe->step({input}, {}, loss_fn, StepOptions().schedule(schedule)).loss;
    Tensors results = {torch::tensor(loss, torch::kDouble)};
    for (const at::Tensor& parameter : pipe->parameters()) {
      results.push_back(testing::on_host(parameter.grad()));
    }
    pipe->zero_grad();
    return results;
  }

  // The most that a step takes on the first device.
  size_t peak(const Schedule& schedule) {
    const size_t before = allocator().in_use(0);
    allocator().reset_peak(0);
    train(schedule);
    EXPECT_EQ(allocator().in_use(0), before);
    return allocator().peak(0) - before;
  }

  GPipe pipe;
  at::Tensor input;
};

std::string complaint_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Offloads cells at any legal places.
Schedule with_any_offloads(const Schedule& schedule, std::mt19937_64& random) {
  std::vector<std::vector<Action>> table = schedule.table();
  for (std::vector<Action>& actions : table) {
    const std::vector<Action> before = actions;
    for (const Action& action : before) {
      const bool forward = action.kind == ActionKind::kForward;
      if ((!forward && action.kind != ActionKind::kInputGradient) || random() % 2 == 0) continue;
      const auto cell = [&](const Action& each) {
        return each.stage == action.stage && each.micro_batch == action.micro_batch;
      };
      if (std::any_of(actions.begin(), actions.end(),
                      [&](const Action& each) { return cell(each) && !computes(each.kind); })) {
        continue;  // one of its gaps is taken
      }
      const auto begin = std::find(actions.begin(), actions.end(), action) - actions.begin() + 1;
      const auto end = std::find_if(actions.begin() + begin, actions.end(), cell) - actions.begin();
      const auto out =
          begin + static_cast<int64_t>(random() % static_cast<uint64_t>(end - begin + 1));
      const auto back = out + static_cast<int64_t>(random() % static_cast<uint64_t>(end - out + 1));
      actions.insert(actions.begin() + back,
                     {ActionKind::kReload, action.stage, action.micro_batch});
      actions.insert(actions.begin() + out,
                     {ActionKind::kOffload, action.stage, action.micro_batch});
    }
  }
  return Schedule::create(schedule.stages(), schedule.micro_batches(), std::move(table));
}

Schedule lowered(const Schedule& schedule) {
  SimulateOptions costs;
  costs.offload.bytes = [](const Action&) { return 1.0; };
  costs.offload.to_host = costs.offload.to_device = 1.0;
  return with_offloads(schedule, Routes::create(schedule.stages()), costs);
}

class OffloadTest : public testing::DeviceTest {};

TEST_F(OffloadTest, SameBitsInLessMemory) {
  Subject subject;
  const Schedule plain = Schedule::gpipe(2, kMicroBatches);
  const Schedule low = lowered(plain);
  const Tensors want = subject.train(plain);
  EXPECT_THAT(subject.train(low), EqualsBitwise(want)) << "the first step";
  EXPECT_THAT(subject.train(low), EqualsBitwise(want));
  const size_t high = subject.peak(plain);
  // The stage's outputs stay, and what the backward makes is the same in both.
  EXPECT_LT(subject.peak(low), high * 4 / 5) << high;
  EXPECT_THAT(subject.train(plain), EqualsBitwise(want)) << "without offloads again";
}

TEST_F(OffloadTest, KeptInputsOfCellsThatRecomputeGo) {
  Subject subject(Checkpoint::kAlways);
  const Schedule plain = Schedule::gpipe(2, kMicroBatches);
  const Schedule low = lowered(plain);
  const Tensors want = subject.train(plain);
  EXPECT_THAT(subject.train(low), EqualsBitwise(want));
  const auto on_second = [&](const Schedule& schedule) {
    allocator().reset_peak(1);
    const size_t before = allocator().in_use(1);
    subject.train(schedule);
    return allocator().peak(1) - before;
  };
  EXPECT_LT(on_second(low), on_second(plain));
}

TEST_F(OffloadTest, AnyPlacesGiveTheSameBits) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 12; ++k) {
    const auto mode = std::vector{Checkpoint::kNever, Checkpoint::kAlways,
                                  Checkpoint::kExceptLast}[static_cast<size_t>(k % 3)];
    Subject subject(mode);
    const Schedule plain =
        testing::random_schedule(2, kMicroBatches, testing::MicroBatchOrder::kAny, random);
    const Schedule moved = with_any_offloads(plain, random);
    SCOPED_TRACE(moved.to_text());
    ASSERT_NO_THROW(moved.verify(Sends::kBuffered));
    const Tensors want = subject.train(plain);
    for (int step = 0; step < 2; ++step) {
      EXPECT_THAT(subject.train(moved), EqualsBitwise(want)) << step;
    }
  }
}

// The next stage on the same device has the results themselves, and needs them for its gradients of
// weights.
TEST_F(OffloadTest, WhatAForwardHandsOnStaysBetweenTheHalves) {
  std::string text = "stages 2\nmicro_batches 4\nworker 0:";
  for (const char i : {'0', '1', '2', '3'}) {
    for (const char* const action : {"F0", "F1", "I1", "I0", "O0", "W1", "L0", "W0"}) {
      text += std::string(" ") + action + "." + i;
    }
  }
  const Schedule table = Schedule::from_text(text);
  Subject subject(Checkpoint::kNever, Subject::model(), {testing::device(0), testing::device(0)});
  const Tensors want = subject.train(without_offloads(table));
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(complaint_of([&] { EXPECT_THAT(subject.train(table), EqualsBitwise(want)); }), "");
  }
}

TEST_F(OffloadTest, AChangeInPlaceIsRefusedAsWithout) {
  const auto layers = [] {
    torch::nn::Sequential layers;
    const torch::nn::Sequential others = Subject::model();
    for (size_t k = 0; k + 1 < others->size(); ++k) layers->push_back(*(others->begin() + k));
    layers->push_back(testing::layer<at::Tensor, at::Tensor>([](at::Tensor x) {
      at::Tensor y = x.sigmoid();  // its backward needs the result
      const at::Tensor z = y.mul(2);
      y.add_(1);
      return z;
    }));
    return layers;
  };
  Subject subject(Checkpoint::kNever, layers());
  const Schedule plain = Schedule::gpipe(2, kMicroBatches);
  for (const Schedule& schedule : {plain, lowered(plain), lowered(plain)}) {
    EXPECT_THAT(complaint_of([&] { subject.train(schedule); }),
                HasSubstr("modified by an inplace operation"));
  }
}

// The model with another first layer.
template <typename FirstLayer>
torch::nn::Sequential behind(std::shared_ptr<FirstLayer> first) {
  torch::nn::Sequential layers;
  layers->push_back(std::move(first));
  const torch::nn::Sequential others = Subject::model();
  for (size_t k = 1; k < others->size(); ++k) layers->push_back(*(others->begin() + k));
  return layers;
}

// A first layer that keeps what it has made: in its first call, for all later ones, or in each call
// for the next one.
torch::nn::Sequential with_a_layer_that_keeps(bool of_last_call) {
  auto kept = std::make_shared<at::Tensor>();
  return behind(testing::layer<at::Tensor, at::Tensor>([kept, of_last_call](at::Tensor x) {
    const at::Tensor own = x.exp().neg();
    if (!kept->defined()) *kept = own;
    const at::Tensor result = x * *kept;
    if (of_last_call) *kept = own;
    return result;
  }));
}

Schedule away_between_forward_and_backward() {
  return Schedule::from_text(
      "stages 2\nmicro_batches 4\n"
      "worker 0: F0.0 O0.0 F0.1 O0.1 F0.2 O0.2 F0.3 B0.3 L0.2 B0.2 L0.1 B0.1 L0.0 B0.0\n"
      "worker 1: F1.0 F1.1 F1.2 F1.3 B1.3 B1.2 B1.1 B1.0\n");
}

TEST_F(OffloadTest, WhatALayerKeeps) {
  const Schedule low = away_between_forward_and_backward();
  for (const bool of_last_call : {false, true}) {
    const auto subject = [&] {
      return Subject(Checkpoint::kNever, with_a_layer_that_keeps(of_last_call));
    };
    Subject plain = subject(), moved = subject();
    for (int step = 0; step < 3; ++step) {
      const Tensors want = plain.train(without_offloads(low));
      EXPECT_EQ(complaint_of([&] { EXPECT_THAT(moved.train(low), EqualsBitwise(want)); }), "");
    }
  }
}

TEST_F(OffloadTest, WhatALayerReadsByItsAddress) {
  auto kept = std::make_shared<at::Tensor>();
  Subject subject(Checkpoint::kNever,
                  behind(testing::layer<at::Tensor, at::Tensor>([kept](at::Tensor x) {
                    if (kept->defined()) (void)kept->const_data_ptr();
                    *kept = x.exp().neg();
                    return x * *kept;
                  })));
  EXPECT_THAT(complaint_of([&] { subject.train(away_between_forward_and_backward()); }),
              AllOf(HasSubstr("memory is on the host"), HasSubstr("stage 0, micro-batch 2")));
}

// Schedules in which cells of both stages go while others compute: at once, behind the next
// forward, and between the halves of their backward.
std::vector<Schedule> away_while_others_compute() {
  const std::vector<std::string> lines = {
      "F0 O0 F1 O1 F2 O2 F3 O3 L3 B3 L2 B2 L1 B1 L0 B0",
      "F0 F1 O0 F2 O1 F3 O2 B3 L2 B2 L1 B1 L0 B0",
      "F0 F1 F2 F3 I0 O0 I1 O1 I2 O2 I3 O3 L0 W0 L1 W1 L2 W2 L3 W3"};
  std::vector<Schedule> schedules;
  for (const std::string& line : lines) {
    std::string text = "stages 2\nmicro_batches 4\n";
    for (const char stage : {'0', '1'}) {
      text += std::string("worker ") + stage + ":";
      for (size_t at = 0; at < line.size(); at += 3) {
        text += std::string(" ") + line[at] + stage + "." + line[at + 1];
      }
      text += "\n";
    }
    schedules.push_back(Schedule::from_text(text));
  }
  return schedules;
}

// The layer makes it in the first micro-batch of a step.
TEST_F(OffloadTest, AMaskForAllMicroBatches) {
  for (const Schedule& low : away_while_others_compute()) {
    SCOPED_TRACE(low.to_text());
    const auto subject = [] {
      return Subject(Checkpoint::kNever,
                     behind(testing::layer<at::Tensor, at::Tensor>(
                         [mask = at::Tensor(), calls = 0](const at::Tensor& x) mutable {
                           if (calls++ % kMicroBatches == 0) mask = x.detach().gt(0).to(at::kFloat);
                           return x * mask;
                         })));
    };
    Subject plain = subject(), moved = subject();
    for (int step = 0; step < 3; ++step) {
      const Tensors want = plain.train(without_offloads(low));
      EXPECT_EQ(complaint_of([&] { EXPECT_THAT(moved.train(low), EqualsBitwise(want)); }), "");
    }
  }
}

// Multiplies the gradient by a tensor that no operator of a forward is given.
struct ScalesGradients : torch::autograd::Function<ScalesGradients> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& scale) {
    context->save_for_backward({scale});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * context->get_saved_variables()[0], at::Tensor()};
  }
};

// A function that is called for each micro-batch. It makes a mask in a step's first one, and only
// backwards use it.
std::function<at::Tensor(at::Tensor)> with_a_mask_for_backwards(bool by_hook) {
  return [by_hook, mask = at::Tensor(), calls = 0](const at::Tensor& x) mutable {
    if (!is_recomputing() && calls++ % kMicroBatches == 0) {
      mask = x.detach().gt(0).to(at::kFloat);
    }
    if (!by_hook) return ScalesGradients::apply(x, mask);
    at::Tensor y = x.clone();
    if (y.requires_grad()) y.register_hook([mask = mask](at::Tensor g) { return g * mask; });
    return y;
  };
}

TEST_F(OffloadTest, AMaskThatOnlyBackwardsUse) {
  for (const Schedule& low : away_while_others_compute()) {
    for (const bool by_hook : {false, true}) {
      for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
        SCOPED_TRACE(low.to_text() + (by_hook ? "hook " : "function ") + to_text(mode));
        const auto subject = [&] {
          testing::manual_seed(4);
          const auto first = std::make_shared<torch::nn::LinearImpl>(kSide, kSide);
          torch::nn::Sequential layers = behind(first);
          layers->push_back(
              testing::layer<at::Tensor, at::Tensor>(with_a_mask_for_backwards(by_hook)));
          return Subject(mode, layers);
        };
        Subject plain = subject(), moved = subject();
        for (int step = 0; step < 3; ++step) {
          const Tensors want = plain.train(without_offloads(low));
          EXPECT_EQ(complaint_of([&] { EXPECT_THAT(moved.train(low), EqualsBitwise(want)); }), "");
        }
      }
    }
  }
}

// The loss may have the mask, and a graph of its own.
TEST_F(OffloadTest, AMaskThatOnlyBackwardsOfTheLossUse) {
  for (const Schedule& low : away_while_others_compute()) {
    for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
      SCOPED_TRACE(low.to_text() + to_text(mode));
      Subject plain(mode), moved(mode);
      const auto loss = [] {
        return [masked = with_a_mask_for_backwards(/*by_hook=*/true)](const Tensors& outputs,
                                                                      const Tensors& /*targets*/) {
          return masked(outputs[0]).pow(2).mean();
        };
      };
      const LossFn of_plain = loss(), of_moved = loss();
      for (int step = 0; step < 3; ++step) {
        const Tensors want = plain.train(without_offloads(low), of_plain);
        EXPECT_EQ(
            complaint_of([&] { EXPECT_THAT(moved.train(low, of_moved), EqualsBitwise(want)); }),
            "");
      }
    }
  }
}

// The mean of mse_loss has the memory of all squares.
TEST_F(OffloadTest, ALossThatAddsUp) {
  for (const Schedule& low : away_while_others_compute()) {
    SCOPED_TRACE(low.to_text());
    Subject plain, moved;
    at::Tensor losses, outputs;  // of the step
    const LossFn loss = [&](const Tensors& given, const Tensors& /*targets*/) {
      const at::Tensor mean = torch::mse_loss(given[0], torch::zeros_like(given[0]));
      const at::Tensor squares = given[0].detach().square();
      losses = losses.defined() ? losses + mean.detach() : mean.detach();
      outputs = outputs.defined() ? outputs + squares : squares;
      return mean;
    };
    const auto train = [&](Subject& subject, const Schedule& schedule) {
      losses = outputs = at::Tensor();
      Tensors results = subject.train(schedule, loss);
      results.push_back(testing::on_host(losses));
      results.push_back(testing::on_host(outputs));
      return results;
    };
    for (int step = 0; step < 3; ++step) {
      const Tensors want = train(plain, without_offloads(low));
      EXPECT_EQ(complaint_of([&] { EXPECT_THAT(train(moved, low), EqualsBitwise(want)); }), "");
    }
  }
}

// A layer that does what the message of WhatALayerReadsByItsAddress advises.
struct CopiesIntoABufferImpl : torch::nn::Module {
  CopiesIntoABufferImpl() : kept(register_buffer("kept", torch::ones({kRows, kSide}))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor result = x * kept.clone();
    const torch::NoGradGuard no_grad;
    kept.copy_(x.exp().neg());
    return result;
  }
  at::Tensor kept;
};

TEST_F(OffloadTest, WhatALayerCopiesIntoABufferStays) {
  const Schedule low = away_between_forward_and_backward();
  const auto subject = [] {
    return Subject(Checkpoint::kNever, behind(std::make_shared<CopiesIntoABufferImpl>()));
  };
  Subject plain = subject(), moved = subject();
  for (int step = 0; step < 2; ++step) {
    const Tensors want = plain.train(without_offloads(low));
    EXPECT_THAT(moved.train(low), EqualsBitwise(want));
  }
}

// Its forward runs a backward of its own, and clips what that gives.
struct TrainsItselfImpl : torch::nn::Module {
  TrainsItselfImpl() {
    testing::manual_seed(3);
    inner = register_module("inner", torch::nn::Linear(kSide, kSide));
  }
  at::Tensor forward(const at::Tensor& x) {
    inner->forward(x.detach()).pow(2).mean().backward();
    inner->weight.mutable_grad() = inner->weight.grad().clamp(-1, 1);
    return x.tanh();
  }
  torch::nn::Linear inner{nullptr};
};

TEST_F(OffloadTest, GradientsThatACellMakesStay) {
  const Schedule low = away_between_forward_and_backward();
  const auto subject = [] {
    return Subject(Checkpoint::kNever, behind(std::make_shared<TrainsItselfImpl>()));
  };
  Subject plain = subject(), moved = subject();
  for (int step = 0; step < 2; ++step) {
    const Tensors want = plain.train(without_offloads(low));
    EXPECT_EQ(complaint_of([&] { EXPECT_THAT(moved.train(low), EqualsBitwise(want)); }), "");
  }
}

// What norms have gathered is added up from micro-batch to micro-batch.
TEST_F(OffloadTest, DeferredStatisticsStay) {
  const auto subject = [] {
    torch::nn::Sequential layers;
    const auto shaped = [](std::vector<int64_t> shape) {
      return testing::layer<at::Tensor, at::Tensor>(
          [shape = std::move(shape)](at::Tensor x) { return x.reshape(shape); });
    };
    layers->push_back(shaped({-1, kRows / 8 * kSide}));
    layers->push_back(torch::nn::BatchNorm1d(kRows / 8 * kSide));  // in double 64 KiB
    layers->push_back(shaped({-1, kSide}));
    const torch::nn::Sequential others = Subject::model();
    for (const auto& layer : *others) layers->push_back(layer);
    return Subject(Checkpoint::kNever, std::move(layers), testing::devices(2),
                   /*deferred_batch_norm=*/true);
  };
  Subject plain = subject(), moved = subject();
  const Schedule low = away_between_forward_and_backward();
  for (int step = 0; step < 2; ++step) {
    const Tensors want = plain.train(without_offloads(low));
    EXPECT_EQ(complaint_of([&] { EXPECT_THAT(moved.train(low), EqualsBitwise(want)); }), "");
    EXPECT_THAT(testing::on_host(moved.pipe->buffers().at(1)),
                EqualsBitwise(testing::on_host(plain.pipe->buffers().at(1))));
  }
}

TEST_F(OffloadTest, RefusedWhereItIsNotPossible) {
  const Schedule low = lowered(Schedule::gpipe(2, kMicroBatches));
  Subject on_cpu(Checkpoint::kNever, Subject::model(), {c10::kCPU, c10::kCPU});
  EXPECT_THAT(complaint_of([&] { on_cpu.train(low); }),
              HasSubstr("offloads of stage 0, whose device is cpu"));
  GPipe with_graphs(
      Subject::model(),
      GPipeOptions({8, 8}).devices(testing::devices(2)).chunks(kMicroBatches).graphs(true));
  const at::Tensor input = torch::randn({kMicroBatches * kSide, kSide}).to(testing::device(0));
  EXPECT_THAT(complaint_of([&] {
                with_graphs->step({input}, {}, mean_of_squares, StepOptions().schedule(low));
              }),
              HasSubstr("GPipeOptions::graphs"));
  Ablation ablation;
  ablation.early_recomputes = true;
  GPipe early(Subject::model(), GPipeOptions({8, 8})
                                    .devices(testing::devices(2))
                                    .chunks(kMicroBatches)
                                    .checkpoint(Checkpoint::kAlways)
                                    .ablation(ablation));
  EXPECT_THAT(
      complaint_of([&] { early->step({input}, {}, mean_of_squares, StepOptions().schedule(low)); }),
      HasSubstr("early_recomputes"));
  // It is the last stage that recomputes early, and these are the first one's offloads.
  early->step({input}, {}, mean_of_squares,
              StepOptions().schedule(away_between_forward_and_backward()));
}

TEST_F(OffloadTest, AStepThatFailsFreesAll) {
  Subject subject;
  const Schedule low = lowered(Schedule::gpipe(2, kMicroBatches));
  subject.train(low);
  const Tensors want = subject.train(low);
  const std::vector<size_t> before = {allocator().in_use(0), allocator().in_use(1)};
  int failures = 0;
  for (int device = 0; device < 2; ++device) {
    for (int64_t allocation = 0;; allocation += 3) {
      SCOPED_TRACE(allocation);
      allocator().fail(device, allocation);
      const std::string complaint = complaint_of([&] { subject.train(low); });
      allocator().fail(device, -1);
      subject.pipe->zero_grad();
      EXPECT_EQ((std::vector<size_t>{allocator().in_use(0), allocator().in_use(1)}), before);
      if (complaint.empty()) break;
      EXPECT_THAT(complaint, HasSubstr("out of memory"));
      ++failures;
    }
  }
  EXPECT_GT(failures, 10);
  EXPECT_THAT(subject.train(low), EqualsBitwise(want));
}

}  // namespace
}  // namespace gpipe
