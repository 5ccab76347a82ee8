// Counts how often threads wait for their device in a step, in clipping and in an update, where
// each process has a device of its own. The fake accelerator counts the waits.
//
// Over links a step reads its losses, and clipping its norm. By way of the host a process also
// waits once for each packet that leaves it, and once for all that it sends outside of a run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/runtime.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/processes/world_training.h"
#include "gpipe/zero_optimizer.h"
#include "tied/tied_layer.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::device;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Say = WorldRanks::Say;

// What the ranks train.
struct Training {
  std::function<nn::Sequential()> make;
  GPipeOptions options;
  int64_t replicas = 1;  // with a sharded optimizer, if there are several
};

// Three steps of 4 micro-batches on `where`. Returns losses, norms and the parameters' hash; sets
// `*waits` to the waits of the third step, clipping and update, like "1 1 0".
std::string trained(const Training& training, const World& world, c10::Device where,
                    std::string* waits) {
  GPipe pipe(training.make(), GPipeOptions(training.options).world(world));
  const auto make = [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  };
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (training.replicas > 1) {
    optimizer = std::make_unique<ZeroOptimizer>(pipe, make);
  } else {
    optimizer = make(pipe->local_parameters());
  }
  std::string text;
  for (int64_t k = 0; k < 3; ++k) {
    optimizer->zero_grad();
    const RowRange range = world.rows(8, 4);
    const torch::Tensor rows = testing::copy_on(
        where,
        (torch::linspace(-1, 1, 40) * (k + 1)).view({8, 5}).slice(0, range.begin, range.end));
    waits->clear();
    const auto counted = [&](const std::function<void()>& work) {
      const auto count = [] { return testing::fake::runtime().counters().host_waits; };
      const int64_t before = count();
      work();
      *waits += std::to_string(count() - before) + " ";
    };
    counted([&] { text += bits(pipe->step({rows}, {rows}, squares()).loss); });
    counted([&] { text += bits(pipe->clip_grad_norm_(0.1)); });
    counted([&] { (void)optimizer->step(); });
  }
  return text + pipe->parameter_hash();
}

// Expects one process's bits of two ranks, and that many waits: [rank].
void expect_waits(const std::string& links, const Training& training,
                  const std::vector<std::string>& expected) {
  auto ranks = ranks_with(links, 2, [&](const World& world, const Say& say) {
    const auto run = [&](const World& of, std::vector<c10::Device> devices, std::string* waits) {
      Training here = training;
      const c10::Device where = devices.front();
      here.options.chunks(4).cpu_threads_per_stage(1).devices(std::move(devices));
      return outcome([&] { return trained(here, of, where, waits); });
    };
    std::string waits;
    const auto stages = training.options.balance().size();
    say(run(World(), std::vector<c10::Device>(stages, device(0)), &waits));
    say(run(world.grid(training.replicas, 2 / training.replicas), {device(world.rank() + 1)},
            &waits));
    say(waits);
  });
  const std::vector<std::string> alone = ranks.lines();
  EXPECT_THAT(alone, Each(AllOf(HasSubstr("0x"), alone.front())));
  EXPECT_THAT(ranks.lines(), Each(alone.front())) << links;
  EXPECT_EQ(ranks.lines(), expected) << links;
  ranks.expect_ends();
}

TEST(WorldWaits, APipeline) {
  const Training training{[] { return layers([](int64_t) {}); }, GPipeOptions({4, 4})};
  expect_waits("host", training, {"4 1 0 ", "5 1 0 "});
  expect_waits("sockets", training, {"0 1 0 ", "1 1 0 "});
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

// Rank 0 sends the weight, and rank 1 with each micro-batch's gradient also the weight's. Rank 1
// has nothing to clip.
TEST(WorldWaits, ATiedWeight) {
  const Training training{[] {
                            torch::manual_seed(1);
                            const auto weight = torch::randn({5, 5}, torch::requires_grad());
                            return nn::Sequential(std::make_shared<TiedImpl>(weight, true),
                                                  nn::Linear(5, 5),
                                                  std::make_shared<TiedImpl>(weight, false));
                          },
                          GPipeOptions({2, 1})};
  expect_waits("host", training, {"5 1 0 ", "9 0 0 "});
  expect_waits("sockets", training, {"0 1 0 ", "1 0 0 "});
}

// A replica waits for its gradients, and for the sums that it gives out; the first one also for the
// statistics that it gives out, and the other one for those that it gives to the first. Statistics
// never go over links.
TEST(WorldWaits, Replicas) {
  const Training training{[] {
                            torch::manual_seed(5);
                            return nn::Sequential(nn::Linear(5, 6), nn::BatchNorm1d(6),
                                                  nn::Linear(6, 5));
                          },
                          GPipeOptions({3}).groups(2).deferred_batch_norm(true), 2};
  expect_waits("host", training, {"4 1 1 ", "4 1 1 "});
  expect_waits("sockets", training, {"2 1 0 ", "2 1 0 "});
}

// By way of the host a packet waits for its stage's device. Meanwhile the stage's worker must
// launch the next forward.
TEST(WorldWaits, TheNextCellIsLaunchedBeforeAPacketHasLeft) {
  auto ranks = ranks_with("host", 2, [](const World& world, const Say& say) {
    const c10::Device here = device(world.rank());
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<void> busy;
    int64_t forwards = 0;
    GPipe pipe(layers([&](int64_t k) {
                 const std::lock_guard<std::mutex> lock(mutex);
                 if (k != 0 || ++forwards < 2) return;
                 busy.reset();
                 changed.notify_all();
               }),
               GPipeOptions({4, 4}).chunks(4).devices({here}).world(world));
    const torch::Tensor rows = testing::copy_on(here, torch::linspace(-1, 1, 40).view({8, 5}));
    if (world.rank() == 0) busy = testing::hold_stream(here);
    std::string waited;
    std::thread limit([&] {  // otherwise a worker that waits would wait forever
      std::unique_lock<std::mutex> lock(mutex);
      if (changed.wait_for(lock, std::chrono::seconds(30), [&] { return busy == nullptr; })) return;
      busy.reset();
      waited = "waited";
    });
    const std::string loss =
        outcome([&] { return bits(pipe->step({rows}, {rows}, squares()).loss); });
    limit.join();
    say(loss + waited);
  });
  const std::vector<std::string> lines = ranks.lines();
  EXPECT_THAT(lines, ElementsAre(HasSubstr("0x"), lines[0]));
  EXPECT_EQ(lines[1].find("waited"), std::string::npos);
  ranks.expect_ends();
}

}  // namespace
}  // namespace gpipe::distributed
