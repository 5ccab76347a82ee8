// Tests a pipeline's life outside its calls: it is never used, used again and again, or forked.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/torch_seed.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;
using testing::PlainModel;

nn::Sequential model() {
  testing::manual_seed(1);
  return nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 2));
}

GPipe piped() {
  return GPipe(model(),
               GPipeOptions({1, 1, 1}).devices({c10::kCPU, c10::kCPU, c10::kCPU}).chunks(3));
}

at::Tensor square(const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); }

TEST(Lifetime, APipelineNeedNotBeUsed) {
  const testing::Watchdog watchdog(std::chrono::seconds(60), "lifetime");
  for (int i = 0; i < 20; ++i) piped();
  const GPipe copy = piped();  // copies of a holder hold the same pipeline
  const GPipe other = copy;
  EXPECT_EQ(copy.ptr(), other.ptr());
}

TEST(Lifetime, BatchesOfAnySizeFollowOneAnother) {
  nn::Sequential plain = model();
  GPipe pipe = piped();
  for (const int64_t rows : {8, 3, 1, 12, 2, 7}) {
    testing::manual_seed(rows);
    const at::Tensor x = torch::randn({rows, 4});
    plain->zero_grad();
    pipe->zero_grad();
    const double want =
        PlainModel(plain, 3).step({x}, {}, square, testing::BackwardOrder::kAscending).loss;
    const double loss = pipe->step({x}, {}, square).loss;
    EXPECT_EQ(loss, want) << rows << " rows";
    const auto have = pipe->named_parameters();
    for (const auto& p : plain->named_parameters()) {
      EXPECT_THAT(have[p.key()].grad(), EqualsBitwise(p.value().grad()))
          << rows << " rows, " << p.key();
    }
  }
}

// Makes a call in the child. Returns the child's exit code, which is 0 if the call throws the error
// about fork().
int call_after_fork(GPipe& pipe, bool step) {
  try {
    const at::Tensor x = torch::ones({6, 4});
    if (step) {
      pipe->step({x}, {}, square);
    } else {
      pipe->forward(x);
    }
    return 1;
  } catch (const std::exception& error) {
    return std::string(error.what()).find("fork()") == std::string::npos ? 2 : 0;
  }
}

TEST(Lifetime, AfterAForkTheChildGetsAnErrorAndTheParentGoesOn) {
  const testing::Watchdog watchdog(std::chrono::seconds(60), "lifetime");
  GPipe pipe = piped();
  const at::Tensor x = torch::ones({6, 4});
  const double before = pipe->step({x}, {}, square).loss;
  for (const bool step : {false, true}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(call_after_fork(pipe, step));
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "1: no error, 2: another one";
  }
  EXPECT_EQ(pipe->step({x}, {}, square).loss, before);
}

// The threads of the workers belong to the parent. So the child's destructor must not wait for
// them.
TEST(Lifetime, AfterAForkTheChildMayDestroyThePipeline) {
  const testing::Watchdog watchdog(std::chrono::seconds(60), "lifetime");
  GPipe pipe = piped();
  pipe->forward(torch::ones({6, 4}));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pipe = GPipe(nullptr);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Runs `call` in the child. Returns 0 if it throws the error about fork().
template <typename Call>
int code_of(Call call) {
  try {
    call();
    return 1;
  } catch (const std::exception& error) {
    return std::string(error.what()).find("fork()") == std::string::npos ? 2 : 0;
  }
}

// Returns what `in_child` returns, or 3 if it throws. The exception must not go on, because it
// would unwind the parent's threads.
template <typename InChild>
int end_of_child(InChild in_child) {
  try {
    return in_child();
  } catch (const std::exception& error) {
    std::cerr << "the child failed: " << error.what() << std::endl;
    return 3;
  }
}

// In these tests the child's copy of the pipeline is in the middle of a run that will never end.
class ForkInTheMiddleOfACall : public ::testing::TestWithParam<int64_t> {
 protected:
  // A pipeline whose last layer waits as long as `*waits` is true. `waits` may be null.
  GPipe pipe_that_waits(const std::atomic<bool>* waits) {
    torch::manual_seed(1);
    nn::Sequential model;
    const int64_t stages = GetParam();
    for (int64_t j = 0; j < stages; ++j) model->push_back(nn::Linear(4, 4));
    model->push_back(testing::layer<at::Tensor, at::Tensor>([this, waits](at::Tensor x) {
      while (waits != nullptr && *waits) {
        inside_ = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return x;
    }));
    std::vector<int64_t> balance(stages, 1);
    balance.back() = 2;
    return GPipe(model, GPipeOptions(balance)
                            .devices(std::vector<c10::Device>(stages, c10::Device(c10::kCPU)))
                            .chunks(2));
  }

  // Forks while another thread is in a call. The child ends with the exit code that `in_child`
  // returns.
  template <typename InChild>
  void fork_during_a_step(InChild in_child) {
    const testing::Watchdog watchdog(std::chrono::seconds(100), "fork in the middle of a call");
    std::atomic<bool> waits{false};
    GPipe pipe = pipe_that_waits(&waits);
    const at::Tensor x = torch::ones({4, 4});
    const at::Tensor earlier = pipe->forward(x).sum();
    waits = true;
    std::thread other([&] { pipe->step({x}, {}, square); });
    while (!inside_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      _exit(end_of_child([&] { return in_child(pipe, x, earlier); }));
    }
    int status = 0;
    const pid_t waited = waitpid(child, &status, 0);
    waits = false;
    other.join();
    ASSERT_EQ(waited, child);
    EXPECT_FALSE(WIFSIGNALED(status)) << "signal " << WTERMSIG(status) << " (14: it hung)";
    EXPECT_EQ(WEXITSTATUS(status), 0) << "1: no error, 2: another one, 3: see above";
    earlier.backward();
  }

 private:
  std::atomic<bool> inside_{false};
};

TEST_P(ForkInTheMiddleOfACall, TheChildGetsAnErrorInForward) {
  fork_during_a_step([](GPipe& pipe, const at::Tensor& x, const at::Tensor&) {
    return code_of([&] { pipe->forward(x); });
  });
}

TEST_P(ForkInTheMiddleOfACall, TheChildGetsAnErrorInStep) {
  fork_during_a_step([](GPipe& pipe, const at::Tensor& x, const at::Tensor&) {
    return code_of([&] { pipe->step({x}, {}, square); });
  });
}

TEST_P(ForkInTheMiddleOfACall, TheChildGetsAnErrorInBackward) {
  fork_during_a_step([](GPipe&, const at::Tensor&, const at::Tensor& earlier) {
    return code_of([&] { earlier.backward(); });
  });
}

TEST_P(ForkInTheMiddleOfACall, TheChildMayDestroyThePipeline) {
  fork_during_a_step([](GPipe& pipe, const at::Tensor&, const at::Tensor&) {
    pipe = GPipe(nullptr);
    return 0;
  });
}

TEST_P(ForkInTheMiddleOfACall, TheChildMayMakeAPipelineOfItsOwn) {
  fork_during_a_step([this](GPipe&, const at::Tensor& x, const at::Tensor&) {
    GPipe own = pipe_that_waits(nullptr);
    own->step({x}, {}, square);
    own->forward(x).sum().backward();
    // The child does not end by exit(). The LibTorch threads that earlier tests have started in the
    // parent are missing here, and LibTorch's static objects would end the process because of that.
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, ForkInTheMiddleOfACall, ::testing::Values(1, 3));

}  // namespace
}  // namespace gpipe
