// Tests that processes with one device each compute what one process computes on one device, bit
// for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/processes/world_training.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/zero_optimizer.h"
#include "meta/meta_scope.h"
#include "tied/tied_layer.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::device;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::SampleModel;
using Say = WorldRanks::Say;

TEST(WorldDevices, EverySampleModel) {
  for (const SampleModel& sample : testing::sample_models()) {
    expect_one_processs_bits(sample, Spread());
  }
}

TEST(WorldDevices, SeveralStagesInAProcess) {
  int64_t count = 0;
  for (const SampleModel& sample : testing::sample_models()) {
    if (sample.layers < 4) continue;
    ++count;
    Spread spread;
    spread.schedule = "zb-v";
    spread.stages = 4;
    expect_one_processs_bits(sample, spread);
  }
  EXPECT_GE(count, 2);
}

// A layer that computes tanh(x times a weight). The first of these layers has registered the
// weight.
struct TiedImpl : nn::Module, TiedLayer {
  TiedImpl(const torch::Tensor& weight, bool registers) : weight(weight) {
    if (registers) register_parameter("weight", weight);
  }
  std::vector<torch::Tensor> tied_parameters() const override {
    return parameters().empty() ? std::vector<torch::Tensor>{weight} : std::vector<torch::Tensor>();
  }
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(x.matmul(weight)); }
  torch::Tensor weight;
};

TEST(WorldDevices, TiedWeights) {
  SampleModel sample = testing::sample_models().front();
  sample.name = "tied";
  sample.layers = 4;
  sample.make = [] {
    torch::manual_seed(1);
    const torch::Tensor weight = torch::randn({5, 5}, torch::requires_grad());
    return nn::Sequential(std::make_shared<TiedImpl>(weight, true), nn::Dropout(0.3),
                          nn::Linear(5, 5), std::make_shared<TiedImpl>(weight, false));
  };
  sample.inputs = sample.targets = [](int64_t rows) {
    return Tensors{torch::linspace(-1, 1, rows * 5).view({rows, 5})};
  };
  sample.loss = [](const Tensors& outputs, const Tensors& targets) {
    return torch::mse_loss(outputs[0], targets[0]);
  };
  expect_one_processs_bits(sample, Spread());
}

nn::Sequential normed() {
  torch::manual_seed(5);
  return nn::Sequential(nn::Linear(5, 6), nn::BatchNorm1d(6), nn::Linear(6, 5), nn::Dropout(0.2));
}

Tensors rows_of(c10::Device where, const RowRange& rows) {
  return testing::on(where,
                     {torch::linspace(-1, 1, 8 * 5).view({8, 5}).slice(0, rows.begin, rows.end)});
}

// Between replicas on different devices, gradients, running statistics and the parameters that one
// replica's optimizer has changed go through the host. The bits must be those of one process.
TEST(WorldDevices, ReplicasAndTheirShardedOptimizer) {
  const auto run = [](const World& world, GPipeOptions options, c10::Device where) {
    options.chunks(4).groups(2).deferred_batch_norm(true).cpu_threads_per_stage(1);
    GPipe pipe(normed(), options.devices({where}).world(world));
    ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::Adam>(std::move(parameters), 0.01);
    });
    std::string text;
    for (int64_t k = 0; k < 3; ++k) {
      optimizer.zero_grad();
      torch::manual_seed(k);
      const Tensors rows = rows_of(where, world.rows(8, 4));
      text += bits(pipe->step(rows, rows, squares()).loss);
      optimizer.step();
    }
    for (const torch::Tensor& buffer : pipe->buffers()) {
      text += bits(buffer.to(torch::kCPU, torch::kDouble).sum().item<double>());
    }
    return text + pipe->parameter_hash();
  };
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    say(run(World(), GPipeOptions({4}), device(0)));
    say(run(world.grid(2, 1), GPipeOptions({4}), device(world.rank() + 1)));
  });
  const std::vector<std::string> alone = ranks.lines();
  EXPECT_THAT(alone, Each(HasSubstr("0x"))) << "not a result";
  EXPECT_THAT(ranks.lines(), Each(alone.front()));
  ranks.expect_ends();
}

// The model is made on meta, and each process makes the values of its own layers on its device. One
// process then loads the checkpoint of both, and must have the same parameters and the same loss.
TEST(WorldDevices, MaterializesSavesAndResumes) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder == nullptr ? "/tmp" : folder) + "/saved_of_devices";
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    const auto make = [] {
      const MetaScope scope;
      return normed();
    };
    const auto fill = [](const std::string&, torch::Tensor& tensor, torch::Generator) {
      if (tensor.is_floating_point()) {
        tensor.fill_(0.25);
      } else {
        tensor.zero_();
      }
    };
    const GPipeOptions options =
        GPipeOptions({2, 2}).chunks(2).deferred_batch_norm(true).cpu_threads_per_stage(1);
    const c10::Device here = device(world.rank() + 1);
    GPipe pipe(make(), GPipeOptions(options).devices({here}).world(world));
    pipe->materialize(fill);
    torch::optim::Adam optimizer(pipe->local_parameters(), 0.01);
    const auto step = [&](GPipe of, c10::Device where) {
      torch::manual_seed(2);
      const Tensors rows = rows_of(where, {0, 8});
      return std::to_string(of->step(rows, rows, squares()).loss);
    };
    (void)step(pipe, here);
    optimizer.step();
    save_checkpoint(pipe, optimizer, {1, 8}, path);
    const std::string loss = step(pipe, here);
    const std::string hash = pipe->parameter_hash();
    if (world.rank() != 0) return say("saved");
    GPipe alone(normed(), GPipeOptions(options).devices({device(0), device(0)}));
    torch::optim::Adam alone_optimizer(alone->parameters(), 0.01);
    (void)load_checkpoint(alone, alone_optimizer, path);
    const bool same = alone->parameter_hash() == hash && step(alone, device(0)) == loss &&
                      loss.find("nan") == std::string::npos;
    say(same ? "same" : "different");
  });
  EXPECT_THAT(ranks.lines(), ::testing::ElementsAre("same", "saved"));
  ranks.expect_ends();
}

TEST(WorldDevices, OneTypeOfDevicesInAllProcesses) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    const c10::Device here = world.rank() == 0 ? c10::Device(c10::kCPU) : device(1);
    say(outcome([&] {
      GPipe pipe(normed(), GPipeOptions({2, 2}).devices({here}).world(world));
      return std::string("made");
    }));
  });
  EXPECT_THAT(ranks.lines(), Each(AllOf(HasSubstr("the type of GPipeOptions::devices"),
                                        HasSubstr("rank 0 has 'cpu'"))));
  ranks.expect_ends();
}

}  // namespace
}  // namespace gpipe::distributed
