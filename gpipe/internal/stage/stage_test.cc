#include "gpipe/internal/stage/stage.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/foreign_nodes.h"
#include "gpipe/internal/cell/late_checks.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/torch_seed.h"
#include "interception/interception.h"
#include "skip/skippable.h"

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;

// A linear layer that counts its calls, draws a mask, and fails when told to.
struct CountedImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    if (fails) throw std::runtime_error("x");
    return nn::functional::dropout(linear->forward(x).tanh(),
                                   nn::functional::DropoutFuncOptions().p(0.3));
  }
  nn::Linear linear = register_module("linear", nn::Linear(4, 4));
  int calls = 0;
  bool fails = false;
};
TORCH_MODULE(Counted);

// A layer that also gives its input to a later stage.
struct StashImpl : nn::Module, skip::Skippable {
  StashImpl() : Skippable({"a"}, {}) {}
  at::Tensor forward(const at::Tensor& x) {
    stash("a", x * 3);
    return x * 2;
  }
};
TORCH_MODULE(Stash);

std::vector<Packet> one_packet(const at::Tensor& tensor, bool needs_grad = false) {
  std::vector<Packet> packets(1);
  packets[0].items.emplace_back();
  Item& item = packets[0].items[0];
  item.tensor = tensor;
  item.needs_grad = needs_grad;
  item.version = tensor.defined() ? static_cast<int64_t>(tensor._version()) : 0;
  return packets;
}

// A stage in the middle of a model, whose first layer is the model's layer 5, and the objects that
// a run gives its cells.
class StageTest : public ::testing::Test {
 protected:
  StageTest() {
    testing::manual_seed(3);
    plan_.checkpoints = {Checkpoint::kNever, Checkpoint::kNever};
    plan_.step_seed = 7;
  }

  Stage make(const nn::Sequential& model, const std::vector<skip::SkipEdge>& skips = {}) {
    std::vector<Layer> layers;
    int64_t index = 5;
    for (auto any = model->begin(); any != model->end(); ++any, ++index) {
      layers.push_back({*any, "name" + std::to_string(index), index, skip::CallPlan(*any->ptr())});
    }
    std::vector<Route> routes;
    for (const skip::SkipEdge& skip : skips) {
      routes.push_back({skip.source_partition, skip.target_partition, "a"});
    }
    return {1, c10::Device(c10::kCPU), std::move(layers),
            ports_of(1, Routes::create(4, routes), skips)};
  }

  std::vector<Packet> forward(Stage& stage, int64_t micro_batch, const at::Tensor& x, Cell& cell) {
    plan_.model = ModelState({&stage_0_, &stage.layers()});
    stage.begin_action();
    return stage.forward(context_, micro_batch, one_packet(x, /*needs_grad=*/true), cell, nullptr,
                         &statistics_);
  }
  std::vector<Packet> backward(Stage& stage, int64_t micro_batch, std::vector<Packet> gradients,
                               Cell& cell, BackwardPart part = BackwardPart::kWhole) {
    stage.begin_action();
    LeafSums sums;
    Packet targets;
    return stage.backward(context_, micro_batch, std::move(gradients), cell,
                          {part, &sums, &targets});
  }

  std::vector<Layer> stage_0_;  // stage 0 has no layers here
  CellPlan plan_;
  std::vector<std::vector<bool>> follows_ = {{false, false}, {false, true}};
  std::vector<bool> ascend_ = {true, true};
  std::vector<int64_t> first_on_device_ = {0, 0};
  TrackedStatistics tracked_{2};
  ForeignNodes foreign_;
  LateChecks late_checks_;
  Transfers transfers_;
  std::vector<uint64_t> worker_threads_;
  StatisticsLog statistics_;
  RunContext context_{plan_,    follows_,     ascend_,    first_on_device_, tracked_,
                      foreign_, late_checks_, transfers_, worker_threads_};
  InterceptionScope interception_;
};

TEST_F(StageTest, ForwardLeavesNoGraphAndBackwardGivesTheGradientsOfItsLayers) {
  nn::Linear linear(4, 3);
  Stage stage = make(nn::Sequential(linear));
  const at::Tensor x = at::randn({2, 4});
  Cell cell;
  const std::vector<Packet> outputs = forward(stage, 0, x, cell);
  ASSERT_EQ(outputs.size(), 1u);
  const Item& output = outputs[0].items[0];
  EXPECT_TRUE(output.needs_grad);
  EXPECT_FALSE(output.tensor.requires_grad());
  const at::Tensor gradient = at::randn({2, 3});
  const auto input_gradients = backward(stage, 0, one_packet(gradient), cell);

  const at::Tensor plain_x = x.clone().requires_grad_();
  nn::Linear plain(4, 3);
  {
    torch::NoGradGuard no_grad;
    plain->weight.copy_(linear->weight);
    plain->bias.copy_(linear->bias);
  }
  const at::Tensor plain_y = plain->forward(plain_x);
  plain_y.backward(gradient);
  EXPECT_THAT(output.tensor, EqualsBitwise(plain_y.detach()));
  EXPECT_THAT(input_gradients[0].items[0].tensor, EqualsBitwise(plain_x.grad()));
  EXPECT_THAT(linear->weight.grad(), EqualsBitwise(plain->weight.grad()));
  EXPECT_THAT(linear->bias.grad(), EqualsBitwise(plain->bias.grad()));
}

TEST_F(StageTest, ACheckpointedCellRunsItsLayersTwiceAndGivesTheSame) {
  const at::Tensor x = at::randn({2, 4});
  const at::Tensor gradient = at::randn({2, 4});
  Counted layer;
  Stage stage = make(nn::Sequential(layer));
  std::vector<at::Tensor> gradients;
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    plan_.checkpoints[1] = mode;
    layer->calls = 0;
    layer->zero_grad();
    Cell cell;
    forward(stage, 0, x, cell);
    EXPECT_EQ(cell.recompute.has_value(), mode == Checkpoint::kAlways);
    const auto of_input = backward(stage, 0, one_packet(gradient), cell);
    EXPECT_EQ(layer->calls, mode == Checkpoint::kAlways ? 2 : 1);
    EXPECT_FALSE(cell.recompute.has_value()) << "the inputs that it kept are freed";
    gradients.push_back(of_input[0].items[0].tensor);
    gradients.push_back(layer->linear->weight.grad().clone());
  }
  EXPECT_THAT(gradients[2], EqualsBitwise(gradients[0]));
  EXPECT_THAT(gradients[3], EqualsBitwise(gradients[1]));
}

TEST_F(StageTest, ExceptLastMeansWhatTheScheduleRunsBackwardAtOnce) {
  plan_.checkpoints[1] = Checkpoint::kExceptLast;
  Stage stage = make(nn::Sequential(Counted()));
  Cell cells[2];
  for (const int64_t i : {0, 1}) {
    forward(stage, i, at::randn({2, 4}), cells[i]);
    EXPECT_EQ(cells[i].recompute.has_value(), !follows_[1][i]);
  }
}

TEST_F(StageTest, HalvesOfABackwardAreTheWhole) {
  const at::Tensor x = at::randn({2, 4});
  const at::Tensor gradient = at::randn({2, 4});
  Counted layer;
  Stage stage = make(nn::Sequential(layer));
  std::vector<at::Tensor> gradients;
  for (const bool halves : {false, true}) {
    layer->zero_grad();
    Cell cell;
    forward(stage, 0, x, cell);
    const auto of_input = backward(stage, 0, one_packet(gradient), cell,
                                   halves ? BackwardPart::kInputs : BackwardPart::kWhole);
    gradients.push_back(of_input[0].items[0].tensor);
    if (halves) {
      EXPECT_FALSE(layer->linear->weight.grad().defined());
      EXPECT_TRUE(backward(stage, 0, {}, cell, BackwardPart::kWeights).empty());
    }
    gradients.push_back(layer->linear->weight.grad().clone());
  }
  EXPECT_THAT(gradients[2], EqualsBitwise(gradients[0]));
  EXPECT_THAT(gradients[3], EqualsBitwise(gradients[1]));
}

TEST_F(StageTest, ASkipLeavesByAPortOfItsOwnAndItsGradientComesBackThere) {
  const skip::SkipEdge skip{{skip::Namespace::common(), "a"}, 5, 9, 1, 3};
  Stage stage = make(nn::Sequential(Stash()), {skip});
  const at::Tensor x = at::randn({2, 4});
  Cell cell;
  const std::vector<Packet> outputs = forward(stage, 0, x, cell);
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_THAT(outputs[0].items[0].tensor, EqualsBitwise(x * 2));
  EXPECT_THAT(outputs[1].items[0].tensor, EqualsBitwise(x * 3));
  std::vector<Packet> gradients = one_packet(at::randn({2, 4}));
  gradients.push_back(one_packet(at::randn({2, 4}))[0]);
  const at::Tensor expected = gradients[1].items[0].tensor * 3 + gradients[0].items[0].tensor * 2;
  const auto of_input = backward(stage, 0, std::move(gradients), cell);
  EXPECT_THAT(of_input[0].items[0].tensor, EqualsBitwise(expected));
}

TEST_F(StageTest, WithoutRecordingNothingIsKept) {
  plan_.record = false;
  torch::NoGradGuard no_grad;
  plan_.checkpoints[1] = Checkpoint::kAlways;
  Stage stage = make(nn::Sequential(Counted()));
  Cell cell;
  EXPECT_FALSE(forward(stage, 0, at::randn({2, 4}), cell)[0].items[0].needs_grad);
  EXPECT_FALSE(cell.recompute.has_value());
}

TEST_F(StageTest, TheLayerToBlameIsTheOneThatRan) {
  Counted good, bad;
  bad->fails = true;
  Stage stage = make(nn::Sequential(good, bad));
  EXPECT_EQ(stage.current_layer(), "stage 1");
  Cell cell;
  EXPECT_THROW(forward(stage, 0, at::randn({2, 4}), cell), std::runtime_error);
  EXPECT_EQ(stage.current_layer(), "layer 6 ('name6')");
  stage.begin_action();
  EXPECT_EQ(stage.current_layer(), "stage 1");
}

TEST_F(StageTest, AnInputThatWasChangedOnItsWayIsAnError) {
  Stage stage = make(nn::Sequential(nn::Linear(4, 4)));
  const at::Tensor x = at::randn({2, 4});
  std::vector<Packet> inputs = one_packet(x, /*needs_grad=*/true);
  x.add_(1);
  Cell cell;
  EXPECT_THAT([&] { stage.forward(context_, 0, std::move(inputs), cell, nullptr, &statistics_); },
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("an input of stage 1 was changed in place")));
}

}  // namespace
}  // namespace gpipe::internal
