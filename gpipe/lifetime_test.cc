// A pipeline's life outside its calls: never used, used on and on, forked.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <string>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
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
  const GPipe copy = piped();  // a holder: both are the same pipeline
  const GPipe other = copy;
  EXPECT_EQ(copy.ptr(), other.ptr());
}

TEST(Lifetime, BatchesOfAnySizeFollowOneAnother) {
  nn::Sequential plain = model();
  GPipe pipe = piped();
  for (const int64_t rows : {8, 3, 1, 12, 2, 0, 7}) {
    testing::manual_seed(rows);
    const at::Tensor x = torch::randn({rows, 4});
    plain->zero_grad();
    pipe->zero_grad();
    const double want =
        PlainModel(plain, 3).step({x}, {}, square, testing::BackwardOrder::kAscending).loss;
    const double loss = pipe->step({x}, {}, square).loss;
    // No rows: the mean of nothing is no number.
    if (rows > 0) {
      EXPECT_EQ(loss, want) << rows << " rows";
    }
    const auto have = pipe->named_parameters();
    for (const auto& p : plain->named_parameters()) {
      EXPECT_THAT(have[p.key()].grad(), EqualsBitwise(p.value().grad()))
          << rows << " rows, " << p.key();
    }
  }
}

// What the child's call ends with: 0 if it is the error that tells of fork().
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

// The workers' threads are the parent's; the child's destructor has none to wait for.
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

}  // namespace
}  // namespace gpipe
