// Tests a layer that fails, anywhere and in any way. The caller must get that very exception and
// learn where it came from. Nothing may hang or be left behind, and the pipeline must remain
// usable.
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <typeinfo>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_seed.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::Watchdog;

constexpr int64_t kStages = 3;
constexpr int64_t kMicroBatches = 4;
constexpr int64_t kFailingCall = 1;

enum class Phase { kForward, kBackward, kRecompute };
enum class Entry { kForward, kStep1F1B, kStepGPipe };
enum class Kind { kC10, kRuntime, kOwnException, kForeign };

// Exceptions of users may be of classes of their own, derived from std::exception or from nothing.
struct OwnException : std::exception {
  const char* what() const noexcept override { return "own trouble"; }
};
struct Foreign {
  int code;
};

[[noreturn]] void throw_one(Kind kind) {
  switch (kind) {
    case Kind::kC10:
      TORCH_CHECK_VALUE(false, "trouble in the layer");
      break;
    case Kind::kRuntime:
      throw std::runtime_error("trouble in the layer");
    case Kind::kOwnException:
      throw OwnException();
    case Kind::kForeign:
      break;
  }
  throw Foreign{7};
}

// The state that the layers of a model share: which stage fails, and the tensors that were alive.
struct Control {
  int64_t stage = -1;  // -1: no stage fails
  Phase phase = Phase::kForward;
  Kind kind = Kind::kC10;
  std::atomic<int64_t> calls{0};

  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;  // guarded by mutex

  void call(int64_t caller, Phase now) {
    if (caller == stage && now == phase && calls++ == kFailingCall) throw_one(kind);
  }
  void watch(const at::Tensor& tensor) {
    std::lock_guard<std::mutex> lock(mutex);
    storages.push_back(tensor.storage().getWeakStorageImpl());
  }
  int64_t alive() {
    std::lock_guard<std::mutex> lock(mutex);
    int64_t count = 0;
    for (const auto& storage : storages) count += storage.expired() ? 0 : 1;
    return count;
  }
};

struct FailInBackward : torch::autograd::Function<FailInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               Control* control, int64_t stage) {
    context->saved_data["control"] = reinterpret_cast<int64_t>(control);
    context->saved_data["stage"] = stage;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* control = reinterpret_cast<Control*>(context->saved_data["control"].toInt());
    control->call(context->saved_data["stage"].toInt(), Phase::kBackward);
    return {gradients[0], torch::Tensor(), torch::Tensor()};
  }
};

struct FaultImpl : nn::Module {
  FaultImpl(std::shared_ptr<Control> control, int64_t stage)
      : control(std::move(control)), stage(stage) {}
  torch::Tensor forward(torch::Tensor x) {
    control->call(stage, is_recomputing() ? Phase::kRecompute : Phase::kForward);
    torch::Tensor y = FailInBackward::apply(x.tanh(), control.get(), stage);
    control->watch(x);
    control->watch(y);
    return y;
  }
  std::shared_ptr<Control> control;
  int64_t stage;
};
TORCH_MODULE(Fault);

struct Subject {
  explicit Subject(Checkpoint mode) {
    testing::manual_seed(1);
    nn::Sequential model;
    for (int64_t j = 0; j < kStages; ++j) {
      model->push_back("linear" + std::to_string(j), nn::Linear(4, 4));
      model->push_back("fault" + std::to_string(j), Fault(control, j));
    }
    model->push_back("out", nn::Linear(4, 2));
    pipe = GPipe(model, GPipeOptions({2, 2, 3})
                            .devices(testing::devices(kStages))
                            .chunks(kMicroBatches)
                            .checkpoint(mode));
  }

  // Runs one training step, and returns the gradients of the parameters.
  Tensors train(Entry entry) {
    testing::manual_seed(2);
    const at::Tensor input = torch::randn({8, 4}).to(testing::device());
    const at::Tensor target = torch::randn({8, 2}).to(testing::device(kStages - 1));
    pipe->zero_grad();
    if (entry == Entry::kForward) {
      nn::functional::mse_loss(pipe->forward(input), target).backward();
    } else {
      StepOptions options;
      if (entry == Entry::kStepGPipe) options.schedule(Schedule::gpipe);
      pipe->step(
          {input}, {target},
          [](const Tensors& outputs, const Tensors& targets) {
            return nn::functional::mse_loss(outputs[0], targets[0]);
          },
          options);
    }
    Tensors gradients;
    for (const auto& parameter : pipe->parameters()) gradients.push_back(parameter.grad().clone());
    return gradients;
  }

  std::shared_ptr<Control> control = std::make_shared<Control>();
  GPipe pipe{nullptr};
};

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t k = 0; k < a.size(); ++k) EXPECT_THAT(b[k], EqualsBitwise(a[k])) << k;
}

class FailureTest : public ::testing::TestWithParam<std::tuple<Phase, Kind, Entry, int64_t>> {};

TEST_P(FailureTest, ReachesTheCallerAndThePipelineWorksOn) {
  const auto [phase, kind, entry, stage] = GetParam();
  if (testing::for_gpus() && phase == Phase::kBackward && kind == Kind::kForeign) {
    GTEST_SKIP() << "autograd runs a custom function's backward on a thread of the device, where "
                    "LibTorch ends the process at an exception that is not a std::exception";
  }
  const Watchdog watchdog(std::chrono::minutes(5), "a failing layer");
  // A recompute can fail only in a mode in which every micro-batch has one. For other phases the
  // mode does not matter.
  const Checkpoint mode =
      phase == Phase::kRecompute ? Checkpoint::kAlways : Checkpoint::kExceptLast;
  Subject subject(mode);
  EXPECT_EQ(subject.pipe->last_failure(), std::nullopt);
  subject.control->stage = stage;
  subject.control->phase = phase;
  subject.control->kind = kind;

  const bool descending = phase != Phase::kForward && entry != Entry::kStep1F1B;
  const int64_t micro_batch = descending ? kMicroBatches - 1 - kFailingCall : kFailingCall;
  const std::string layer =
      "layer " + std::to_string(2 * stage + 1) + " ('fault" + std::to_string(stage) + "')";
  const auto place =
      AllOf(HasSubstr("trouble in the layer"), HasSubstr("stage " + std::to_string(stage) + ","),
            HasSubstr("micro-batch " + std::to_string(micro_batch) + ","), HasSubstr(layer),
            HasSubstr(phase == Phase::kForward     ? "in the forward of"
                      : phase == Phase::kRecompute ? "in the recompute of"
                                                   : "in the backward of"));
  switch (kind) {
    case Kind::kC10:
      EXPECT_THAT([&] { subject.train(entry); }, ::testing::ThrowsMessage<c10::ValueError>(place));
      break;
    case Kind::kRuntime:
      EXPECT_THAT([&] { subject.train(entry); },
                  ::testing::ThrowsMessage<std::runtime_error>(place));
      break;
    case Kind::kOwnException:
      EXPECT_THAT([&] { subject.train(entry); },
                  ::testing::ThrowsMessage<OwnException>(std::string("own trouble")));
      break;
    case Kind::kForeign:
      try {
        subject.train(entry);
        ADD_FAILURE() << "nothing thrown";
      } catch (const Foreign& foreign) {
        EXPECT_EQ(foreign.code, 7);
      }
      break;
  }
  const std::optional<Failure> failure = subject.pipe->last_failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->stage, stage);
  EXPECT_EQ(failure->micro_batch, micro_batch);
  EXPECT_EQ(failure->backward, phase != Phase::kForward);
  EXPECT_EQ(failure->recompute, phase == Phase::kRecompute);
  EXPECT_EQ(failure->layer, layer);

  EXPECT_GT(subject.control->storages.size(), 0u);
  EXPECT_EQ(subject.control->alive(), 0);

  subject.control->stage = -1;
  const Tensors gradients = subject.train(entry);
  Subject fresh(mode);
  expect_equal(gradients, fresh.train(entry));
  EXPECT_EQ(subject.control->alive(), 0);
}

std::string case_name(const ::testing::TestParamInfo<FailureTest::ParamType>& info) {
  static const char* const kPhases[] = {"forward", "backward", "recompute"};
  static const char* const kKinds[] = {"c10", "runtime", "own", "foreign"};
  static const char* const kEntries[] = {"in_forward_entry", "in_step_1f1b", "in_step_gpipe"};
  return std::string(kPhases[static_cast<int>(std::get<0>(info.param))]) + "_" +
         kKinds[static_cast<int>(std::get<1>(info.param))] + "_" +
         kEntries[static_cast<int>(std::get<2>(info.param))] + "_stage" +
         std::to_string(std::get<3>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    All, FailureTest,
    ::testing::Combine(::testing::Values(Phase::kForward, Phase::kBackward, Phase::kRecompute),
                       ::testing::Values(Kind::kC10, Kind::kRuntime, Kind::kOwnException,
                                         Kind::kForeign),
                       ::testing::Values(Entry::kForward, Entry::kStep1F1B, Entry::kStepGPipe),
                       ::testing::Range(int64_t{0}, kStages)),
    case_name);

struct CallImpl : nn::Module {
  explicit CallImpl(std::function<void()> body) : body(std::move(body)) {}
  torch::Tensor forward(torch::Tensor x) {
    body();
    return x;
  }
  std::function<void()> body;
};
TORCH_MODULE(Call);

GPipe pipe_of(nn::Sequential model, int64_t chunks) {
  const auto layers = static_cast<int64_t>(model->size());
  return GPipe(std::move(model), GPipeOptions(std::vector<int64_t>(layers, 1))
                                     .devices(testing::devices(layers))
                                     .chunks(chunks));
}

void wait_for(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::yield();
}

TEST(FailuresTest, StagesBehindAFailureNeverStart) {
  const Watchdog watchdog(std::chrono::minutes(5), "a failing first stage");
  std::atomic<int64_t> first{0}, second{0};
  auto pipe = pipe_of(nn::Sequential(Call([&] {
                                       if (first++ == 1) throw std::runtime_error("x");
                                     }),
                                     Call([&] { ++second; })),
                      8);
  EXPECT_THROW(pipe->forward(torch::rand({8, 1}, testing::device())), std::runtime_error);
  EXPECT_EQ(first, 2);  // micro-batch 2 has not been started
  EXPECT_LE(second, 1);
}

TEST(FailuresTest, StagesBeforeAFailureStopEarly) {
  const Watchdog watchdog(std::chrono::minutes(5), "a failing last stage");
  constexpr int64_t kMany = 200;
  std::atomic<int64_t> before{0};
  std::atomic<bool> thrown{false};
  auto pipe = pipe_of(nn::Sequential(Call([&] {
                                       if (before++ == 0) return;
                                       // This gives the pipeline time to notice the error, four
                                       // seconds in all. If it did not notice it, this stage would
                                       // run all micro-batches.
                                       wait_for(thrown);
                                       std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                     }),
                                     Call([&] {
                                       thrown = true;
                                       throw std::runtime_error("x");
                                     })),
                      kMany);
  EXPECT_THROW(pipe->forward(torch::rand({kMany, 1}, testing::device())), std::runtime_error);
  EXPECT_LT(before, kMany);
}

TEST(FailuresTest, OfTwoFailuresTheCallerGetsOneAndItsPlace) {
  const Watchdog watchdog(std::chrono::minutes(5), "two failing layers");
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::atomic<int> inside{0};
    std::atomic<int64_t> calls{0};
    auto fail_together = [&] {
      ++inside;
      while (inside < 2) std::this_thread::yield();
      throw std::runtime_error("x");
    };
    auto pipe = pipe_of(nn::Sequential(Call([&] {
                                         if (calls++ == 1) fail_together();
                                       }),
                                       Call(fail_together)),
                        2);
    try {
      pipe->forward(torch::rand({2, 1}, testing::device()));
      ADD_FAILURE() << "nothing thrown";
    } catch (const std::runtime_error& error) {
      const auto failure = pipe->last_failure();
      ASSERT_TRUE(failure.has_value());
      EXPECT_THAT(error.what(), HasSubstr("stage " + std::to_string(failure->stage) +
                                          ", micro-batch " + std::to_string(failure->micro_batch)));
    }
  }
}

TEST(FailuresTest, ALossThatFailsIsCalledByItsName) {
  const Watchdog watchdog(std::chrono::minutes(5), "a failing loss");
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    Subject subject(mode);
    auto fail = [](const Tensors&, const Tensors&) -> at::Tensor { throw std::runtime_error("x"); };
    EXPECT_THAT(([&] {
                  subject.pipe->step({torch::rand({8, 4}, testing::device())}, {}, fail);
                }),
                ::testing::ThrowsMessage<std::runtime_error>(
                    AllOf(HasSubstr("stage 2"), HasSubstr("the loss function"))));
    EXPECT_FALSE(subject.pipe->last_failure()->backward);

    Control control;
    control.stage = 0;
    control.phase = Phase::kBackward;
    control.kind = Kind::kRuntime;
    control.calls = kFailingCall;
    auto fail_in_backward = [&](const Tensors& outputs, const Tensors&) {
      return FailInBackward::apply(outputs[0].mean(), &control, 0);
    };
    EXPECT_THAT(
        ([&] {
          subject.pipe->step({torch::rand({8, 4}, testing::device())}, {}, fail_in_backward);
        }),
        ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("the loss function")));
    EXPECT_TRUE(subject.pipe->last_failure()->backward);
    EXPECT_EQ(subject.control->alive(), 0);
  }
}

TEST(FailuresTest, AnObserverThatThrowsFailsTheStep) {
  const Watchdog watchdog(std::chrono::minutes(5), "a failing observer");
  Subject subject(Checkpoint::kExceptLast);
  auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
  EXPECT_THROW(subject.pipe->step({torch::rand({8, 4}, testing::device())}, {}, loss,
                                  StepOptions().on_event([](const Event& event) {
                                    if (event.action.stage == 1) throw OwnException();
                                  })),
               OwnException);
  EXPECT_EQ(subject.control->alive(), 0);
  Subject fresh(Checkpoint::kExceptLast);
  expect_equal(subject.train(Entry::kStep1F1B), fresh.train(Entry::kStep1F1B));
}

// A layer may keep an exception and throw it in every call. Its message must not grow each time.
TEST(FailuresTest, AnExceptionThatIsThrownAgainAndAgainKeepsItsMessage) {
  const Watchdog watchdog(std::chrono::minutes(5), "an exception thrown again and again");
  struct OwnTorchError : c10::Error {
    using c10::Error::Error;
  };
  for (const bool own : {false, true}) {
    const c10::SourceLocation here{__func__, __FILE__, __LINE__};
    const auto kept = own ? std::make_exception_ptr(OwnTorchError(here, "trouble"))
                          : std::make_exception_ptr(c10::ValueError(here, "trouble"));
    std::atomic<int64_t> calls{0};
    nn::Sequential model(nn::Linear(4, 4), Call([&] {
                           if (calls++ % 3 == 1) std::rethrow_exception(kept);
                         }));
    GPipe pipe(model, GPipeOptions({1, 1}).devices(testing::devices(2)).chunks(2));
    std::set<std::string> messages;
    for (int round = 0; round < 3; ++round) {
      calls = 0;
      try {
        pipe->forward(torch::rand({4, 4}, testing::device()));
        FAIL();
      } catch (const c10::Error& error) {
        EXPECT_EQ(typeid(error) == typeid(OwnTorchError), own);
        messages.insert(error.what_without_backtrace());
      }
      ASSERT_TRUE(pipe->last_failure().has_value());
      EXPECT_EQ(pipe->last_failure()->stage, 1);
      EXPECT_EQ(pipe->last_failure()->micro_batch, 1);
    }
    ASSERT_EQ(messages.size(), 1u);
    if (own) {
      EXPECT_EQ(*messages.begin(), "trouble");
    } else {
      // The message names the layer's type, which begins with this file's namespace.
      EXPECT_THAT(*messages.begin(),
                  AllOf(::testing::StartsWith("trouble (in the forward of stage 1, micro-batch 1, "
                                              "layer 1 ('1'), a gpipe::"),
                        ::testing::EndsWith("::CallImpl)")));
    }
    try {
      std::rethrow_exception(kept);
    } catch (const c10::Error& error) {
      EXPECT_TRUE(error.context().empty()) << "the layer's own object was changed";
    }
  }
}

TEST(FailuresTest, AWrongShapeIsReportedWithItsLayer) {
  const Watchdog watchdog(std::chrono::minutes(5), "an input of a wrong width");
  Subject subject(Checkpoint::kNever);
  EXPECT_THAT(
      [&] {
        subject.pipe->forward(torch::rand({8, 5}, testing::device()));
      },
      ::testing::ThrowsMessage<c10::Error>(HasSubstr("layer 0 ('linear0')")));
}

TEST(FailuresTest, AFailedForwardLeavesDeferredStatisticsAlone) {
  const Watchdog watchdog(std::chrono::minutes(5), "a failure behind a batch norm");
  nn::BatchNorm1d norm(4), plain(4);
  std::atomic<int64_t> calls{0};
  nn::Sequential model(norm, Call([&] {
                         if (calls++ == 1) throw std::runtime_error("x");
                       }));
  GPipe pipe(model,
             GPipeOptions({1, 1}).devices(testing::devices(2)).chunks(3).deferred_batch_norm(true));
  const at::Tensor x = torch::randn({6, 4}).to(testing::device());
  EXPECT_THROW(pipe->forward(x), std::runtime_error);
  EXPECT_THAT(testing::on_host(norm->running_mean), EqualsBitwise(torch::zeros({4})));
  EXPECT_THAT(testing::on_host(norm->running_var), EqualsBitwise(torch::ones({4})));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  pipe->forward(x);
  plain(testing::on_host(x));
  // Sums over micro-batches are rounded differently from a sum over the batch.
  EXPECT_TRUE(torch::allclose(testing::on_host(norm->running_mean), plain->running_mean,
                              /*rtol=*/1e-5,
                              /*atol=*/1e-6));
  EXPECT_TRUE(torch::allclose(testing::on_host(norm->running_var), plain->running_var,
                              /*rtol=*/1e-5,
                              /*atol=*/1e-6));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
}

TEST(FailuresTest, AnInputThatCannotBeCutBlamesNoLayer) {
  GPipe pipe(nn::Sequential(nn::Linear(6, 6), nn::Linear(6, 6)),
             GPipeOptions({1, 1}).devices({2, c10::Device(c10::kCPU)}).chunks(2));
  pipe->forward(torch::rand({4, 6}));  // the last layer of this call must not be blamed afterwards
  EXPECT_THAT(
      [&] {
        pipe->forward(torch::rand({4, 6}).to_sparse());
      },
      ::testing::ThrowsMessage<c10::Error>(HasSubstr("in the forward of stage 0, micro-batch 0)")));
  EXPECT_EQ(pipe->last_failure()->layer, "stage 0");
}

TEST(FailuresTest, TheLastFailureIsThatOfTheLastRun) {
  bool fails = true;
  nn::Sequential model(nn::Linear(4, 4), Call([&] {
                         if (fails) throw std::runtime_error("x");
                       }));
  GPipe pipe(model, GPipeOptions({1, 1}).devices({2, c10::Device(c10::kCPU)}).chunks(2));
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); };
  const auto step = [&](const Observer& observer) {
    pipe->step({torch::rand({4, 4})}, {}, loss, StepOptions().on_event(observer));
  };
  EXPECT_THROW(step(nullptr), std::runtime_error);
  EXPECT_TRUE(pipe->last_failure().has_value());
  fails = false;
  const Observer failing = [](const Event&) { throw std::runtime_error("the observer"); };
  EXPECT_THROW(step(failing), std::runtime_error);
  EXPECT_EQ(pipe->last_failure(), std::nullopt) << "an observer's error is no failure of a layer";
  fails = true;
  EXPECT_THROW(step(nullptr), std::runtime_error);
  fails = false;
  step(nullptr);
  EXPECT_EQ(pipe->last_failure(), std::nullopt) << "the step succeeded";
}

// A layer that keeps its input in a member, a path that the pipeline does not see.
struct KeepImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    kept = x;
    return x.tanh();
  }
  at::Tensor kept;
};
TORCH_MODULE(Keep);
struct UseImpl : nn::Module {
  explicit UseImpl(Keep from) : from(std::move(from)) {}
  at::Tensor forward(const at::Tensor& x) { return x * from->kept; }
  Keep from;
};
TORCH_MODULE(Use);

// The error names the layer that uses the tensor that `keep` has kept, wherever that layer is in
// its partition.
TEST(FailuresTest, AGraphThatCameByAHiddenPathIsBlamedOnTheLayerThatUsesIt) {
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); };
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
    for (const std::vector<int64_t>& balance :
         {std::vector<int64_t>{2, 3}, {2, 1, 1, 1}, {3, 2}, {3, 1, 1}}) {
      for (const bool step : {false, true}) {
        SCOPED_TRACE(std::string(to_text(mode)) + ::testing::PrintToString(balance) +
                     (step ? " step" : " forward"));
        Keep keep;
        GPipe pipe(nn::Sequential(nn::Linear(4, 4), keep, nn::Sigmoid(), Use(keep), nn::Sigmoid()),
                   GPipeOptions(balance)
                       .devices(std::vector<c10::Device>(balance.size(), c10::Device(c10::kCPU)))
                       .chunks(1)
                       .checkpoint(mode));
        const torch::Tensor x = torch::rand({4, 4});
        EXPECT_THAT(
            [&] {
              if (step) {
                pipe->step({x}, {}, loss);
              } else {
                pipe->forward(x).sum().backward();
              }
            },
            ::testing::ThrowsMessage<c10::Error>(AllOf(HasSubstr("layer 3 ('3') uses a tensor"),
                                                       HasSubstr("micro-batch 0, layer 3 ('3')"),
                                                       ::testing::Not(HasSubstr("the loss")))));
        ASSERT_NE(pipe->last_failure(), std::nullopt);
        EXPECT_EQ(pipe->last_failure()->layer, "layer 3 ('3')");
        keep->kept = at::Tensor();
      }
    }
  }
}

TEST(FailuresTest, AGraphOfAnotherStageThatCameByAHiddenPathIsRefusedInWords) {
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); };
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kExceptLast}) {
    Keep keep;
    GPipe pipe(
        nn::Sequential(nn::Linear(4, 4), keep, Use(keep)),
        GPipeOptions({2, 1}).devices({2, c10::Device(c10::kCPU)}).chunks(1).checkpoint(mode));
    EXPECT_THAT(
        [&] {
          pipe->step({torch::rand({4, 4})}, {}, loss);
        },
        ::testing::ThrowsMessage<c10::Error>(
            AllOf(HasSubstr("of another stage"), HasSubstr("stash and pop it"))));
    keep->kept = at::Tensor();
  }
}

}  // namespace
}  // namespace gpipe
