// Tests that recomputes and backwards run in the order of the schedule, whatever the devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::device;
using ::testing::ElementsAre;

using BackwardOrder = testing::DeviceTest;

// Keeps events in the order in which they happen, on the workers and on the threads that autograd
// uses.
struct Log {
  void add(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(what);
  }
  std::mutex mutex;
  std::vector<std::string> lines;  // guarded by mutex
};

struct LoggedBackward : torch::autograd::Function<LoggedBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            Log* log, const std::string& what) {
    context->saved_data["log"] = reinterpret_cast<int64_t>(log);
    context->saved_data["what"] = what;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    reinterpret_cast<Log*>(context->saved_data["log"].toInt())
        ->add(context->saved_data["what"].toStringRef());
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

struct LoggingImpl : nn::Module {
  LoggingImpl(std::shared_ptr<Log> log, std::string name)
      : log(std::move(log)), name(std::move(name)) {}
  at::Tensor forward(const at::Tensor& x) {
    if (is_recomputing()) {
      log->add(name + " recompute");
    } else {
      log->add(name + " forward");
      ++forwards;
    }
    return LoggedBackward::apply(x, log.get(), name + " backward");
  }
  std::shared_ptr<Log> log;
  std::string name;
  int64_t forwards = 0;
};
TORCH_MODULE(Logging);

// This is case 21 of torchgpipe's tests. A checkpoint's recompute must come right before its
// backward.
TEST_F(BackwardOrder, EachOfTwoCheckpointsRecomputesRightBeforeItsBackwardTheLaterOneFirst) {
  const auto log = std::make_shared<Log>();
  GPipe pipe(nn::Sequential(Logging(log, "a"), Logging(log, "b")),
             GPipeOptions({1, 1}).devices(testing::devices(2)).checkpoint(Checkpoint::kAlways));
  const at::Tensor x = torch::ones({2, 2}, device()).requires_grad_();
  pipe->forward(x).sum().backward();
  EXPECT_THAT(log->lines, ElementsAre("a forward", "b forward", "b recompute", "b backward",
                                      "a recompute", "a backward"));
}

// A layer whose backward logs the micro-batch that the backward belongs to.
struct NumberedImpl : nn::Module {
  explicit NumberedImpl(std::shared_ptr<Log> log) : log(std::move(log)) {}
  at::Tensor forward(const at::Tensor& x) {
    return LoggedBackward::apply(x, log.get(), std::to_string(calls++));
  }
  std::shared_ptr<Log> log;
  int64_t calls = 0;
};
TORCH_MODULE(Numbered);

// This is case 39 of torchgpipe's tests: backwards run in the order of the schedule, not of
// autograd, also if host and GPU work together.
TEST_F(BackwardOrder, IsTheSchedulesOnHostAndDevice) {
  for (const bool host_first : {true, false}) {
    const auto host = std::make_shared<Log>();
    const auto far = std::make_shared<Log>();
    const c10::Device first = host_first ? c10::Device(c10::kCPU) : device();
    const c10::Device second = host_first ? device() : c10::Device(c10::kCPU);
    GPipe pipe(
        nn::Sequential(Numbered(host), Numbered(far)),
        GPipeOptions({1, 1}).devices({first, second}).chunks(3).checkpoint(Checkpoint::kNever));
    const at::Tensor x = torch::ones({3, 2}, first).requires_grad_();
    pipe->forward(x).sum().backward();
    EXPECT_THAT(host->lines, ElementsAre("2", "1", "0"));
    EXPECT_THAT(far->lines, ElementsAre("2", "1", "0"));
    EXPECT_THAT(testing::on_host(x.grad()), testing::EqualsBitwise(torch::ones({3, 2})));
  }
}

}  // namespace
}  // namespace gpipe
