#include "gpipe/internal/run/make_pass.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <utility>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/placement.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;

class MakePassTest : public ::testing::Test {
 protected:
  static PassTerms terms_of(std::vector<at::Tensor> inputs) {
    PassTerms terms;
    terms.mini_batch = MiniBatch(/*rows=*/4, /*chunks=*/2);
    terms.step_seed = 11;
    terms.checkpoints = {Checkpoint::kNever, Checkpoint::kAlways};
    terms.inputs = Value{ValueKind::kTensors, std::move(inputs)};
    return terms;
  }

  nn::Sequential model_{nn::Linear(3, 3), nn::Linear(3, 3)};
  const std::vector<int64_t> balance_ = {1, 1};
  const Pipeline pipeline_{partitions_of(model_, balance_),
                           std::vector<c10::Device>(2, c10::Device(c10::kCPU)),
                           skip::Layout::inspect(model_, balance_),
                           /*cpu_threads_per_stage=*/1, Placement::one_each(2)};
};

TEST_F(MakePassTest, ThePlanSaysWhatTheCallHasSaid) {
  at::sequence_number::get_and_increment();
  const std::unique_ptr<Pass> pass = make_pass(pipeline_, terms_of({at::ones({4, 3})}));
  EXPECT_EQ(pass->plan.step_seed, 11u);
  EXPECT_TRUE(pass->plan.record);
  EXPECT_EQ(pass->plan.checkpoints[1], Checkpoint::kAlways);
  EXPECT_EQ(pass->plan.thread, at::RecordFunction::currentThreadId());
  EXPECT_EQ(pass->plan.begin, at::sequence_number::peek());
  ASSERT_EQ(pass->cells.size(), 2u);
  EXPECT_EQ(pass->cells[1].size(), 2u);
}

TEST_F(MakePassTest, InputsAreCutAndWantTheGradientsThatTheirOwnersWant) {
  const at::Tensor wanted = at::arange(12.0).view({4, 3}).requires_grad_();
  const at::Tensor other = at::ones({4, 3});
  PassTerms terms = terms_of({wanted, other, at::Tensor()});
  Packet second = make_pass(pipeline_, terms)->inputs.micro_batch(1);
  EXPECT_EQ(second.kind, ValueKind::kTensors);
  ASSERT_EQ(second.items.size(), 3u);
  EXPECT_THAT(second.items[0].tensor, EqualsBitwise(wanted.detach().narrow(0, 2, 2)));
  EXPECT_TRUE(second.items[0].needs_grad);
  EXPECT_FALSE(second.items[1].needs_grad);
  EXPECT_FALSE(second.items[2].tensor.defined() || second.items[2].needs_grad);
  terms.record = false;
  EXPECT_FALSE(make_pass(pipeline_, terms)->inputs.micro_batch(1).items[0].needs_grad);
}

TEST_F(MakePassTest, SharedInputsGoWhole) {
  PassTerms terms = terms_of({at::ones({4, 3}), at::ones({7})});
  terms.shared_inputs = {1};
  const Packet packet = make_pass(pipeline_, std::move(terms))->inputs.micro_batch(0);
  EXPECT_EQ(packet.items.at(0).tensor.size(0), 2);
  EXPECT_EQ(packet.items.at(1).tensor.size(0), 7);
  EXPECT_TRUE(packet.items[1].constant);
}

TEST_F(MakePassTest, WhereTheFirstStageIsElsewhereThereAreNoInputs) {
  PassTerms terms = terms_of({});
  terms.inputs.reset();
  EXPECT_TRUE(make_pass(pipeline_, std::move(terms))->inputs.micro_batch(0).items.empty());
}

}  // namespace
}  // namespace gpipe::internal
