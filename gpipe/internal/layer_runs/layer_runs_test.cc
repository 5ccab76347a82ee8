#include "gpipe/internal/layer_runs/layer_runs.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/testing/function_layer.h"
#include "skip/skippable.h"
#include "skip/testing.h"

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Runs the layers, and returns the events as a text like "F0( F0) B0( B0)": the forward of piece 0
// begins and ends, then its backward. I and W are the halves of a split backward.
std::string told(LayerRuns& runs, const Tensors& inputs, Backwards backwards = Backwards::kWhole) {
  std::string text;
  std::chrono::steady_clock::time_point before{};
  const char* backward = backwards == Backwards::kSplit ? "I" : "B";
  runs.run(
      inputs, /*shared=*/{},
      [&](const LayerEvent& event) {
        text += text.empty() ? "" : " ";
        text += event.weights ? "W" : event.backward ? backward : "F";
        text += std::to_string(event.piece) + (event.begin ? "(" : ")");
        EXPECT_LE(before, event.time);
        before = event.time;
      },
      backwards);
  return text;
}

TEST(LayerRuns, TellsEachLayersForwardAndBackward) {
  const nn::Sequential model(nn::Linear(2, 3), nn::Linear(3, 3), nn::Linear(3, 1));
  LayerRuns runs(model, c10::kCPU, 0);
  EXPECT_THAT(runs.pieces(), ElementsAre(1, 1, 1));
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(told(runs, {at::rand({4, 2})}), "F0( F0) F1( F1) F2( F2) B2( B2) B1( B1) B0( B0)");
  }
}

TEST(LayerRuns, SplitBackwardsAreTheHalvesOfInputsAndThenThoseOfWeights) {
  nn::Sequential model(nn::Linear(2, 3), nn::Linear(3, 1));
  LayerRuns runs(model, c10::kCPU, 0);
  EXPECT_EQ(told(runs, {at::ones({4, 2})}, Backwards::kSplit),
            "F0( F0) F1( F1) I1( I1) I0( I0) W1( W1) W0( W0)");
  const Tensor split = model->parameters()[0].grad().clone();
  model->zero_grad();
  (void)told(runs, {at::ones({4, 2})});
  EXPECT_TRUE(model->parameters()[0].grad().equal(split));
}

TEST(LayerRuns, GivesEveryOutputAGradientOfOnes) {
  const nn::Sequential model(nn::Linear(2, 1));
  LayerRuns runs(model, c10::kCPU, 0);
  runs.run({at::ones({4, 2})}, /*shared=*/{}, [](const LayerEvent&) {});
  EXPECT_TRUE(model->parameters()[0].grad().equal(4 * at::ones({1, 2})));
  runs.run({at::ones({4, 2})}, /*shared=*/{}, [](const LayerEvent&) {});
  EXPECT_TRUE(model->parameters()[0].grad().equal(8 * at::ones({1, 2})));
}

TEST(LayerRuns, TheLastLayersShareHasNoLossInIt) {
  std::string log;
  const nn::Sequential model(testing::layer<Tensor, Tensor>([&log](const Tensor& x) {
    log += "layer ";
    Tensor y = x * 1;
    y.register_hook([&log](const Tensor&) { log += "gradient "; });
    return y;
  }));
  LayerRuns runs(model, c10::kCPU, 0);
  runs.run({at::ones({1, 1}).requires_grad_()}, /*shared=*/{}, [&](const LayerEvent& event) {
    log += event.backward ? "B" : "F";
    log += event.begin ? "( " : ") ";
  });
  EXPECT_EQ(log, "F( layer F) B( gradient B) ");
}

TEST(LayerRuns, AModelThatNeedsNoGradientHasABackwardOfNothing) {
  const nn::Sequential model(nn::Linear(2, 1));
  for (Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  LayerRuns runs(model, c10::kCPU, 0);
  EXPECT_EQ(told(runs, {at::ones({4, 2})}), "F0( F0) B0( B0)");
  EXPECT_EQ(told(runs, {at::ones({4, 2})}, Backwards::kSplit), "F0( F0) I0( I0) W0( W0)");
  EXPECT_FALSE(model->parameters()[0].grad().defined());
}

struct StashImpl : nn::Module, skip::Skippable {
  StashImpl() : Skippable({"skip"}, {}) {}
  Tensor forward(Tensor x) {
    stash("skip", x);
    return at::relu(x);
  }
};
TORCH_MODULE(Stash);

TEST(LayerRuns, SkipsAndSeveralValuesPass) {
  const nn::Sequential model(
      nn::Linear(2, 2), Stash(), testing::layer<Tensor, std::tuple<Tensor, Tensor>>([](Tensor x) {
        return std::make_tuple(x, x.detach());
      }),
      testing::layer<std::tuple<Tensor, Tensor>, Tensor>(
          [](std::tuple<Tensor, Tensor> pair) { return std::get<0>(pair) + std::get<1>(pair); }),
      testing::layer<Tensor, Tensor>([](Tensor x) { return x.relu_(); }),
      skip::testing::pop_layer({"skip"}), testing::layer<Tensor, Tensors>([](const Tensor& x) {
        return Tensors{x * 2, x.detach().to(at::kLong)};
      }));
  LayerRuns runs(model, c10::kCPU, 0);
  EXPECT_EQ(runs.pieces().size(), 7u);
  told(runs, {at::rand({4, 2})});
  EXPECT_TRUE(model->parameters()[0].grad().defined());
}

TEST(LayerRuns, TrafficIsWhatLayersHandOn) {
  const nn::Sequential model(
      Stash(), testing::layer<Tensor, Tensors>([](const Tensor& x) {
        return Tensors{x.to(at::kDouble), Tensor(), x.to(at::kByte)};
      }),
      testing::layer<Tensors, Tensor>([](const Tensors& x) { return x[0].sum(1); }),
      skip::testing::pop_layer({"skip"}));
  LayerRuns runs(model, c10::kCPU, 0);
  const LayerRuns::Traffic traffic = runs.traffic({at::rand({4, 4})});
  EXPECT_THAT(traffic.outputs, ElementsAre(64, 128 + 16, 32, 128));
  ASSERT_EQ(traffic.skips.size(), 1u);
  EXPECT_EQ(traffic.skips[0].from, 0);
  EXPECT_EQ(traffic.skips[0].to, 3);
  EXPECT_EQ(traffic.skips[0].bytes, 64);
}

struct Own {
  Tensor value;
};

TEST(LayerRuns, ALayerThatTakesWhatCannotTravelJoinsTheOneBefore) {
  const nn::Sequential model(
      nn::Linear(2, 2), testing::layer<Tensor, Own>([](const Tensor& x) { return Own{x}; }),
      testing::layer<Own, Own>([](const Own& x) { return x; }),
      testing::layer<Own, Tensor>([](const Own& x) { return x.value; }), nn::Linear(2, 2));
  LayerRuns runs(model, c10::kCPU, 0);
  EXPECT_THAT(runs.pieces(), ElementsAre(1, 3, 1));
  EXPECT_EQ(told(runs, {at::rand({4, 2})}), "F0( F0) F1( F1) F2( F2) B2( B2) B1( B1) B0( B0)");
}

TEST(LayerRuns, AThousandLayersRunOnTheCallingThread) {
  std::vector<std::thread::id> threads;
  nn::Sequential model;
  model->push_back(nn::Linear(2, 2));
  for (int k = 0; k < 999; ++k) {
    model->push_back(testing::layer<Tensor, Tensor>([&](const Tensor& x) {
      threads.push_back(std::this_thread::get_id());
      return x + 1;
    }));
  }
  LayerRuns runs(model, c10::kCPU, 0);
  told(runs, {at::rand({1, 2})});
  EXPECT_EQ(threads.size(), 999u);
  EXPECT_THAT(threads, Each(std::this_thread::get_id()));
}

TEST(LayerRuns, ThreadsThatAreAskedForAreThoseOfAWorker) {
  int threads = 0;
  const nn::Sequential model(testing::layer<Tensor, Tensor>([&](const Tensor& x) {
                               threads = at::get_num_threads();
                               return x + 1;
                             }),
                             nn::Linear(2, 2));
  const int before = at::get_num_threads();
  LayerRuns runs(model, c10::kCPU, before + 1);
  told(runs, {at::rand({1, 2})});
  EXPECT_EQ(threads, before + 1);
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(LayerRuns, AnErrorNamesTheLayer) {
  const nn::Sequential model(nn::Linear(2, 2),
                             testing::layer<Tensor, Tensor>(
                                 [](const Tensor&) -> Tensor { throw std::runtime_error("no"); }));
  LayerRuns runs(model, c10::kCPU, 0);
  EXPECT_THAT(
      [&] {
        told(runs, {at::rand({1, 2})});
      },
      ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("no"), HasSubstr("layer 1 ('1')"))));
}

}  // namespace
}  // namespace gpipe::internal
