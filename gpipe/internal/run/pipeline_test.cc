// Tests Pipeline, and the bridge into the caller's graph, without gpipe::GPipe around them.
#include "gpipe/internal/run/pipeline.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/call/bridge.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/run/make_pass.h"
#include "gpipe/placement.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct FailingImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    if (fails) throw std::runtime_error("x");
    return x;
  }
  bool fails = false;
};
TORCH_MODULE(Failing);

// A pipeline of two stages with a linear layer each. In the second stage a layer that can fail
// comes before the linear layer.
class PipelineTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 5;

  PipelineTest() {
    testing::manual_seed(5);
    module_ = nn::Sequential(nn::Linear(4, 4), failing_, nn::Linear(4, 3));
    const std::vector<int64_t> balance = {1, 2};
    pipeline_ = std::make_shared<Pipeline>(partitions_of(module_, balance),
                                           std::vector<c10::Device>(2, c10::Device(c10::kCPU)),
                                           skip::Layout::inspect(module_, balance),
                                           /*cpu_threads_per_stage=*/1, Placement::one_each(2));
  }

  std::unique_ptr<Pass> pass(const at::Tensor& x) const {
    PassTerms terms;
    terms.mini_batch = MiniBatch(kRows, /*chunks=*/2);
    terms.checkpoints = {Checkpoint::kAlways, Checkpoint::kNever};
    terms.inputs = Value{ValueKind::kTensor, {x}};
    return make_pass(*pipeline_, std::move(terms));
  }

  // Runs a forward as GPipe::forward does.
  at::Tensor forward(const at::Tensor& x) {
    std::unique_ptr<Pass> of_call = pass(x);
    pipeline_->run_forward(*of_call);
    std::vector<at::Tensor> outputs = of_call->mini_batch.join(of_call->outputs);
    attach_bridge(pipeline_, std::move(of_call), {x}, outputs, {true});
    return outputs[0];
  }

  Failing failing_;
  nn::Sequential module_{nullptr};
  std::shared_ptr<Pipeline> pipeline_;
};

TEST_F(PipelineTest, TheHalvesOfAPassGiveOutputsAndTheGradientsOfInputs) {
  const at::Tensor x = at::randn({kRows, 4}).requires_grad_();
  std::unique_ptr<Pass> of_call = pass(x);
  pipeline_->run_forward(*of_call);
  ASSERT_EQ(of_call->outputs.size(), 2u);
  for (int64_t i : {0, 1}) {
    EXPECT_THAT(of_call->outputs[i].items[0].tensor,
                EqualsBitwise(module_->forward(of_call->mini_batch.slice(x, i)).detach()));
  }
  BackwardRequest request;
  request.output_gradients = {at::randn({kRows, 3})};
  const std::vector<Packet> gradients = pipeline_->run_backward(*of_call, request);
  ASSERT_EQ(gradients.size(), 2u);
  for (int64_t i : {0, 1}) {
    const at::Tensor rows = of_call->mini_batch.slice(x, i).requires_grad_();
    module_->forward(rows).backward(of_call->mini_batch.slice(request.output_gradients[0], i));
    EXPECT_THAT(gradients[i].items[0].tensor, EqualsBitwise(rows.grad()));
  }
}

TEST_F(PipelineTest, AFailedRunSpoilsItsPassAndNoOther) {
  const at::Tensor x = at::randn({kRows, 4});
  failing_->fails = true;
  std::unique_ptr<Pass> failed = pass(x);
  EXPECT_THAT([&] { pipeline_->run_forward(*failed); },
              ThrowsMessage<std::runtime_error>(::testing::AllOf(
                  ::testing::StartsWith(
                      "x (in the forward of stage 1, micro-batch 0, layer 1 ('1'), a gpipe::"),
                  ::testing::EndsWith("Impl)"))));
  EXPECT_TRUE(failed->failed);
  const auto failure = pipeline_->last_failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->stage, 1);
  EXPECT_EQ(failure->micro_batch, 0);
  EXPECT_FALSE(failure->backward);
  EXPECT_EQ(failure->layer, "layer 1 ('1')");
  failing_->fails = false;
  std::unique_ptr<Pass> good = pass(x);
  pipeline_->run_forward(*good);
  EXPECT_FALSE(good->failed);
  EXPECT_EQ(pipeline_->last_failure(), std::nullopt);
}

TEST_F(PipelineTest, ThroughTheBridgeAutogradRunsTheBackwardHalf) {
  const at::Tensor x = at::randn({kRows, 4}).requires_grad_();
  const at::Tensor y = forward(x);
  y.sum().backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  y.sum().backward();
  EXPECT_THAT(x.grad(), EqualsBitwise(once * 2));
  EXPECT_THAT([&] { y.sum().backward(); }, ThrowsMessage<c10::Error>(HasSubstr("second time")));
}

TEST_F(PipelineTest, TheBridgeTellsWhyABackwardIsImpossible) {
  const at::Tensor x = at::randn({kRows, 4}).requires_grad_();
  at::Tensor y = forward(x);
  const auto throwing = y.sum();
  module_[0]->as<nn::Linear>()->weight.register_hook(
      [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("hook"); });
  EXPECT_THAT([&] { throwing.backward(); },
              ThrowsMessage<c10::Error>(HasSubstr("was given a hook")))
      << "the schedule is refused before any layer runs";
  y = forward(x);
  EXPECT_THAT([&] { y.sum().backward(); }, ThrowsMessage<std::runtime_error>(HasSubstr("hook")));
  EXPECT_THAT([&] { y.sum().backward(); },
              ThrowsMessage<c10::Error>(HasSubstr("whose earlier backward failed")));
  y = forward(x);
  pipeline_.reset();
  EXPECT_THAT([&] { y.sum().backward(); },
              ThrowsMessage<c10::Error>(HasSubstr("already destroyed")));
}

}  // namespace
}  // namespace gpipe::internal
