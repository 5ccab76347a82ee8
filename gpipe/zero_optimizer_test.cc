// Tests for a ZeroOptimizer that has nothing to update. What it does over replicas is tested in
// gpipe/tests/processes/world_replicas_test.cc.
#include "gpipe/zero_optimizer.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/grad_scaler.h"
#include "gpipe/saving/saving.h"
#include "gpipe/stage_memory.h"
#include "gpipe/testing/processes/world_ranks.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::Each;

template <typename Optimizer>
ZeroOptimizer::Make make() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), 0.1);
  };
}

GPipe without_layers() { return {nn::Sequential(), GPipeOptions(std::vector<int64_t>())}; }

TEST(ZeroOptimizer, StepsAPipelineWithoutLayers) {
  for (const ZeroOptimizer::Make& optimizer :
       {make<torch::optim::SGD>(), make<torch::optim::Adam>(), make<torch::optim::AdamW>(),
        make<torch::optim::RMSprop>()}) {
    GPipe pipe = without_layers();
    ZeroOptimizer zero(pipe, optimizer);
    zero.zero_grad();
    EXPECT_FALSE(zero.step().defined());
    EXPECT_FALSE(zero.step().defined());
    EXPECT_TRUE(zero.owned_parameters().empty());
  }
}

// step() and evaluate() refuse a model without layers. The other functions that a training loop
// calls accept it.
TEST(ZeroOptimizer, TheOtherCallsOfALoopTakeAPipelineWithoutLayers) {
  GPipe pipe = without_layers();
  ZeroOptimizer zero(pipe, make<torch::optim::Adam>());
  const StageMemory memory(pipe);
  EXPECT_TRUE(memory.stages().empty());
  pipe->train();
  pipe->zero_grad();
  EXPECT_EQ(pipe->clip_grad_norm_(1), 0);
  EXPECT_TRUE(pipe->unscale_gradients_(2));
  GradScaler scaler(pipe);
  scaler.step(zero);
  scaler.update();
  pipe->materialize([](const std::string&, at::Tensor&, const at::Generator&) {});
  EXPECT_TRUE(pipe->local_parameters().empty());
  EXPECT_TRUE(pipe->graph_use().empty());
  const std::string hash = pipe->parameter_hash();
  const std::string path = ::testing::TempDir() + "/without_layers" + std::to_string(getpid());
  save_checkpoint(pipe, zero, {}, path);
  (void)load_checkpoint(pipe, zero, path);
  (void)load_weights(pipe, path);
  EXPECT_EQ(pipe->parameter_hash(), hash);
}

// The second stage has no parameters. Its process steps all the same, and the others are updated.
TEST(ZeroOptimizer, StepsWhereAProcessHasNoParameters) {
  for (const int64_t replicas : {1, 2}) {
    distributed::WorldRanks ranks(2 * replicas, [&](const World& all, const auto& say) {
      say(distributed::outcome([&] {
        const World world = all.grid(replicas, 2);
        torch::manual_seed(1);
        GPipe pipe(nn::Sequential(nn::Linear(4, 3), nn::Tanh()),
                   GPipeOptions({1, 1}).chunks(2 * replicas).cpu_threads_per_stage(1).world(world));
        ZeroOptimizer zero(pipe, make<torch::optim::Adam>());
        const std::string before = pipe->parameter_hash();
        const int64_t rows = world.rows(8, 2 * replicas).size();
        pipe->step(pipe->is_here(0) ? Tensors{at::ones({rows, 4})} : Tensors(),
                   pipe->is_here(1) ? Tensors{at::ones({rows, 3})} : Tensors(),
                   [](const Tensors& outputs, const Tensors& targets) {
                     return nn::functional::mse_loss(outputs[0], targets[0]);
                   });
        zero.step();
        if (pipe->parameter_hash() == before) return "nothing was updated";
        return pipe->is_here(1) == pipe->local_parameters().empty() ? "updated" : "parameters";
      }));
    });
    EXPECT_THAT(ranks.lines(), Each("updated")) << replicas;
    ranks.expect_ends();
  }
}

}  // namespace
}  // namespace gpipe
