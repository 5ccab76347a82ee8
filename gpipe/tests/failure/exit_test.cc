// Tests that the process may end while pipelines exist or run: exit() and the return from main must
// neither hang nor end in std::terminate, whatever other threads are doing.

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "gpipe/gpipe.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;

// This object of the program is destroyed last. Until then the other threads run beside static
// destruction. Its destructor is slow only in a process that asks for it, and can demand that a
// layer's work is over.
struct End {
  ~End() {
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    if (!is_over) _exit(1);
  }
  bool slow = false;
  std::atomic<bool> is_over{true};
};
End the_end;

// This holder is initialized with the static objects, and given its pipeline in main. So it is
// destroyed after the objects that the first pipeline registers for exit().
GPipe early_holder = nullptr;

std::atomic<int> done{0};

void wait_for_done(int count) {
  while (done < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

using Layer = std::shared_ptr<testing::FunctionImpl<at::Tensor, at::Tensor>>;
Layer function(std::function<at::Tensor(at::Tensor)> f) {
  return testing::layer<at::Tensor, at::Tensor>(std::move(f));
}

GPipe piped(int64_t stages, Layer extra = nullptr) {
  nn::Sequential model;
  for (int64_t j = 0; j < stages; ++j) model->push_back(nn::Linear(8, 8));
  std::vector<int64_t> balance(stages, 1);
  if (extra) {
    model->push_back(extra);
    ++balance.back();
  }
  return GPipe(model, GPipeOptions(balance).devices(testing::devices(stages)).chunks(4));
}

// The input is made once, because a pipeline does not protect the test's own operators during
// exit().
const at::Tensor& input() {
  static const auto* tensor = new at::Tensor(testing::copy_on(testing::device(), at::ones({8, 8})));
  return *tensor;
}

void step(GPipe pipe) {
  pipe->step({input()}, {},
             [](const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); });
}

// Runs `work` again and again on threads that are never joined: one thread runs it always, and
// another one runs it each time on a new thread, which LibTorch sets up at its first operator.
void keep_running(std::function<void()> work) {
  std::thread([work] {
    for (;; ++done) work();
  }).detach();
  std::thread([work] {
    for (;; ++done) std::thread(work).join();
  }).detach();
}

[[noreturn]] void exit_while(std::function<void()> work) {
  alarm(50);
  the_end.slow = true;
  keep_running(std::move(work));
  wait_for_done(20);
  std::exit(0);
}

class Exit : public ::testing::Test {
 protected:
  // Each test runs in a new process, which has no threads of earlier tests.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
using ExitDeathTest = Exit;

TEST_F(ExitDeathTest, WhileStepsRun) {
  EXPECT_EXIT(
      {
        auto* pipe = new GPipe(piped(3));
        exit_while([pipe] { step(*pipe); });
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitDeathTest, WhileStepsOfASingleStageRun) {
  EXPECT_EXIT(
      {
        auto* pipe = new GPipe(piped(1));
        exit_while([pipe] { step(*pipe); });
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitDeathTest, WhileForwardsRun) {
  EXPECT_EXIT(
      {
        auto* pipe = new GPipe(piped(3));
        exit_while([pipe] { (*pipe)->forward(input()); });
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitDeathTest, WhilePipelinesAreMadeAndDestroyed) {
  EXPECT_EXIT(
      {
        // The layers have no parameters, because making parameters draws random numbers outside of
        // a pipeline.
        exit_while([] {
          GPipe pipe(nn::Sequential(nn::Tanh(), nn::Tanh()),
                     GPipeOptions({1, 1}).devices(testing::devices(2)).chunks(2));
          pipe->forward(input());
        });
      },
      ::testing::ExitedWithCode(0), "");
}

// exit() destroys the static holder of the pipeline, but the threads have another holder.
TEST_F(ExitDeathTest, WhileAStaticPipelineRuns) {
  EXPECT_EXIT(
      {
        static GPipe pipe = piped(3);
        exit_while([copy = pipe] { step(copy); });
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitDeathTest, WhileAPipelineInAnEarlierStaticObjectRuns) {
  EXPECT_EXIT(
      {
        early_holder = piped(3);
        exit_while([copy = early_holder] { step(copy); });
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitDeathTest, WithIdlePipelines) {
  EXPECT_EXIT(
      {
        alarm(50);
        static GPipe pipe = piped(3);
        early_holder = piped(2);
        auto* never_destroyed = new GPipe(piped(4));
        for (GPipe* used : {&pipe, &early_holder, never_destroyed}) step(*used);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Calls exit() on another thread in the first backward of the process, which comes after so many
// evaluations.
[[noreturn]] void exit_in_the_first_backward(int64_t evaluations) {
  alarm(50);
  static std::atomic<bool> has_begun{false};
  const auto exit_elsewhere = [] {
    the_end.is_over = false;
    std::thread([] {
      std::atexit([] { has_begun = true; });  // the first handler that exit() calls
      std::exit(0);
    }).detach();
    while (!has_begun) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for the other handlers
  };
  auto layer = function([=](at::Tensor x) {
    at::Tensor y = x * 2;
    if (!y.requires_grad()) return y;
    x.register_hook([](at::Tensor gradient) {
      the_end.is_over = true;
      return gradient;
    });
    y.register_hook([=](at::Tensor gradient) {
      if (!has_begun) exit_elsewhere();
      return gradient;
    });
    return y;
  });
  GPipe pipe = piped(3, layer);
  for (int64_t i = 0; i < evaluations; ++i) {
    const at::NoGradGuard no_grad;
    pipe->forward(input());
  }
  step(pipe);
  for (;;) pause();  // the other thread ends the process
}

// LibTorch makes autograd's engine in the first backward of the process. The engine's destructor
// ends the threads on which backwards of devices run, so exit() must shut the gate before.
TEST_F(ExitDeathTest, InTheFirstBackward) {
  EXPECT_EXIT(exit_in_the_first_backward(0), ::testing::ExitedWithCode(0), "");
}

// The gate's handler is registered more and more rarely, but always after what is made late.
TEST_F(ExitDeathTest, InTheFirstBackwardAfterManyRuns) {
  EXPECT_EXIT(exit_in_the_first_backward(20), ::testing::ExitedWithCode(0), "");
}

// One stage calls exit() while the other stages work. exit() then destroys the pipeline, and must
// end.
TEST_F(ExitDeathTest, FromInsideALayer) {
  for (const int64_t stages : {1, 3}) {
    for (const bool early : {false, true}) {
      EXPECT_EXIT(
          {
            alarm(50);
            the_end.slow = true;
            auto exiting = function([](at::Tensor x) {
              if (++done == 30) std::exit(0);
              return x;
            });
            static GPipe pipe = piped(stages, exiting);
            if (early) {
              early_holder = pipe;
              pipe = GPipe(nullptr);
            }
            // The holder is not copied, so exit() destroys the module in the middle of a call of
            // the module.
            GPipe& only = early ? early_holder : pipe;
            for (;;) only->forward(input());
          },
          ::testing::ExitedWithCode(0), "");
    }
  }
}

// Autograd runs the hook on a thread of its own if the layer is on a device. The stage waits for
// that thread, so exit() must not wait for the stage: the limit is less than the gate's.
TEST_F(ExitDeathTest, FromInsideABackward) {
  for (const int64_t stages : {1, 3}) {
    EXPECT_EXIT(
        {
          alarm(8);
          static GPipe pipe = piped(stages, function([](at::Tensor x) {
                                      at::Tensor y = x * 2;
                                      if (!y.requires_grad()) return y;
                                      y.register_hook([](at::Tensor gradient) {
                                        if (++done == 6) std::exit(0);
                                        return gradient;
                                      });
                                      return y;
                                    }));
          for (;;) step(pipe);
        },
        ::testing::ExitedWithCode(0), "");
  }
}

TEST_F(ExitDeathTest, FromInsideALayerBesideAnotherPipeline) {
  EXPECT_EXIT(
      {
        auto* other = new GPipe(piped(3));
        auto* pipe = new GPipe(piped(2, function([](at::Tensor x) {
                                       wait_for_done(20);
                                       std::exit(0);
                                       return x;
                                     })));
        alarm(50);
        the_end.slow = true;
        keep_running([other] { step(*other); });
        step(*pipe);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gpipe
