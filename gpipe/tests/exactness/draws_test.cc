// Tests random numbers inside a pipeline: a recompute must draw the same as its forward. With a
// fixed seed, results must depend only on the model and the data, even if other threads draw at the
// same time.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;
using testing::on_host;

GPipeOptions options(std::vector<int64_t> balance, int64_t chunks, Checkpoint mode) {
  const size_t partitions = balance.size();
  return GPipeOptions(std::move(balance))
      .devices(testing::devices(partitions))
      .chunks(chunks)
      .checkpoint(mode);
}

// A Drawer draws from the process's own generator on another thread, from start() on until it is
// destroyed. start() returns when the first number is drawn.
class Drawer {
 public:
  Drawer()
      : thread_([this] {
          while (!started_ && !stopped_) std::this_thread::yield();
          while (!stopped_) {
            torch::rand({16});
            ++drawn_;
          }
        }) {}
  ~Drawer() {
    stopped_ = true;
    thread_.join();
  }
  void start() {
    started_ = true;
    const int64_t before = drawn_;
    while (drawn_ == before) std::this_thread::yield();
  }

 private:
  std::atomic<bool> started_{false}, stopped_{false};
  std::atomic<int64_t> drawn_{0};
  std::thread thread_;
};

TEST(DrawsTest, DropoutDropsTheSameInForwardAndRecompute) {
  Drawer drawer;
  drawer.start();
  GPipe pipe(nn::Sequential(nn::Dropout(0.5), nn::Dropout(0.5), nn::Dropout(0.2), nn::Dropout(0.2)),
             options({1, 1, 1, 1}, 10, Checkpoint::kAlways));
  for (int repeat = 0; repeat < 50; ++repeat) {
    const torch::Tensor x = torch::ones({100, 8}, testing::device()).requires_grad_();
    const torch::Tensor output = pipe->forward(x);
    output.sum().backward();
    const torch::Tensor y = on_host(output);
    const torch::Tensor dropped = y == 0;
    ASSERT_TRUE(dropped.any().item<bool>());
    ASSERT_FALSE(dropped.all().item<bool>());
    ASSERT_THAT(y, EqualsBitwise(on_host(x.grad())))
        << "in repeat " << repeat;  // output and gradient are both the mask, scaled
  }
}

TEST(DrawsTest, EveryRandomOperatorDrawsAgainInTheRecompute) {
  Drawer drawer;
  drawer.start();
  // The draws of each micro-batch. The key is the value of the micro-batch's rows.
  std::mutex mutex;
  std::map<double, std::vector<torch::Tensor>> drawn;
  auto draw = [&](torch::Tensor x) {
    torch::NoGradGuard no_grad;
    torch::Tensor all = torch::cat(
        {torch::rand({4}), torch::randn({4}), torch::randn_like(x[0]), torch::empty({4}).uniform_(),
         torch::bernoulli(torch::full({4}, 0.5)), torch::empty({4}).exponential_(),
         torch::randperm(8).to(torch::kFloat), torch::randint(100, {4}).to(torch::kFloat),
         torch::multinomial(torch::ones({8}), 4).to(torch::kFloat), torch::normal(0.0, 1.0, {4})});
    std::lock_guard<std::mutex> lock(mutex);
    drawn[x[0][0].item<double>()].push_back(all);
    return all;
  };
  auto layer = [&](torch::Tensor x) {
    draw(x);
    return x;
  };
  nn::Linear linear(4, 4);  // without something to train, nothing is recomputed
  GPipe pipe(nn::Sequential(testing::layer<torch::Tensor, torch::Tensor>(
                 [&](torch::Tensor x) { return layer(x) + 0 * linear(x); })),
             options({1}, 4, Checkpoint::kAlways).devices({c10::kCPU}));
  const torch::Tensor x = torch::arange(4).to(torch::kFloat).unsqueeze(1).expand({4, 4}).clone();
  for (int repeat = 0; repeat < 20; ++repeat) {
    drawn.clear();
    pipe->forward(x.clone().requires_grad_()).sum().backward();
    ASSERT_EQ(drawn.size(), 4u);
    for (const auto& [value, draws] : drawn) {
      ASSERT_EQ(draws.size(), 2u);
      EXPECT_THAT(draws[0], EqualsBitwise(draws[1])) << "micro-batch " << value;
      EXPECT_FALSE(torch::equal(draws[0], drawn.begin()->second[0]) &&
                   value != drawn.begin()->first);  // each micro-batch has draws of its own
    }
  }
}

struct Run {
  std::vector<int64_t> balance;
  Checkpoint mode;
  bool step;
  bool fill_drain;
  int64_t threads;
};

// Runs one training step under a seed, while another thread draws from the process's generator. The
// seed also determines the input and the parameters.
Tensors train(const Run& run) {
  Drawer drawer;
  testing::manual_seed(1);
  nn::Sequential model(testing::layer<torch::Tensor, torch::Tensor>([&](torch::Tensor x) {
                         // The step's seed has been drawn when a layer runs, so other threads may
                         // draw now.
                         drawer.start();
                         return x;
                       }),
                       nn::Linear(6, 8), nn::Dropout(0.5), nn::Linear(8, 8), nn::Dropout(0.3),
                       nn::Linear(8, 3));
  GPipe pipe(model, options(run.balance, 4, run.mode).cpu_threads_per_stage(run.threads));
  const torch::Tensor x = torch::randn({8, 6}).to(testing::device());
  const torch::Tensor y =
      torch::randn({8, 3}).to(testing::device(static_cast<int64_t>(run.balance.size()) - 1));
  testing::manual_seed(5);
  auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return nn::functional::mse_loss(outputs[0], targets[0]);
  };
  Tensors result;
  if (run.step) {
    StepOptions options;
    options.keep_outputs(true);
    if (run.fill_drain) options.schedule(Schedule::gpipe);
    result = pipe->step({x}, {y}, loss, options).outputs;
  } else {
    result = {pipe->forward(x)};
    loss(result, {y}).backward();
  }
  for (const auto& parameter : pipe->parameters()) result.push_back(parameter.grad());
  for (torch::Tensor& tensor : result) tensor = on_host(tensor);
  return result;
}

TEST(DrawsTest, ResultsDependOnTheSeedAlone) {
  for (const auto& [step, fill_drain] :
       {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
    const Tensors expected = train({{6}, Checkpoint::kNever, step, fill_drain, 0});
    for (const std::vector<int64_t>& balance :
         {std::vector<int64_t>{6}, {1, 5}, {3, 3}, {2, 2, 2}, {1, 1, 1, 1, 1, 1}}) {
      for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
        for (int64_t threads : {0, 1}) {
          SCOPED_TRACE(::testing::PrintToString(balance) + " " + to_text(mode) +
                       (step ? fill_drain ? " gpipe" : " 1f1b" : " forward"));
          const Tensors actual = train({balance, mode, step, fill_drain, threads});
          ASSERT_EQ(actual.size(), expected.size());
          for (size_t k = 0; k < actual.size(); ++k) {
            EXPECT_THAT(actual[k], EqualsBitwise(expected[k])) << k;
          }
        }
      }
    }
  }
}

TEST(DrawsTest, SchedulesAndEntriesDropTheSame) {
  const Tensors forward = train({{3, 3}, Checkpoint::kAlways, false, false, 0});
  for (const bool fill_drain : {false, true}) {
    const Tensors step = train({{3, 3}, Checkpoint::kAlways, true, fill_drain, 0});
    EXPECT_THAT(step[0], EqualsBitwise(forward[0]));
    // The gradients are summed over the micro-batches in another order than by forward and
    // backward.
    for (size_t k = 1; k < step.size(); ++k) {
      EXPECT_TRUE(torch::allclose(step[k], forward[k], /*rtol=*/1e-4, /*atol=*/1e-6));
    }
  }
}

TEST(DrawsTest, ManualSeedGovernsAndEachStepDrawsAnew) {
  GPipe pipe(nn::Sequential(nn::Dropout(0.5), nn::Dropout(0.5)),
             options({1, 1}, 4, Checkpoint::kExceptLast));
  const torch::Tensor x = torch::ones({8, 16}, testing::device());
  testing::manual_seed(7);
  const torch::Tensor first = on_host(pipe->forward(x));
  const torch::Tensor second = on_host(pipe->forward(x));
  testing::manual_seed(7);
  EXPECT_THAT(on_host(pipe->forward(x)), EqualsBitwise(first));
  EXPECT_THAT(on_host(pipe->forward(x)), EqualsBitwise(second));
  EXPECT_FALSE(torch::equal(first, second));
  testing::manual_seed(8);
  EXPECT_FALSE(torch::equal(on_host(pipe->forward(x)), first));
  // Different micro-batches must draw different numbers.
  const torch::Tensor rows = first.view({4, -1});
  EXPECT_FALSE(torch::equal(rows[0], rows[1]));
}

TEST(DrawsTest, ThePlaceOfTheGlobalGeneratorDoesNotDependOnTheModel) {
  auto next_number = [](nn::Sequential model, std::vector<int64_t> balance) {
    GPipe pipe(std::move(model), options(std::move(balance), 2, Checkpoint::kAlways));
    testing::manual_seed(3);
    pipe->forward(torch::ones({4, 4}, testing::device()).requires_grad_()).sum().backward();
    return torch::rand({1}).item<float>();
  };
  const float expected = next_number(nn::Sequential(nn::Dropout(0.5)), {1});
  EXPECT_EQ(expected, next_number(nn::Sequential(nn::Dropout(0.5), nn::Dropout(0.1)), {1, 1}));
  EXPECT_EQ(expected, next_number(nn::Sequential(nn::Identity(), nn::Dropout(0.1)), {2}));
}

TEST(DrawsTest, AGeneratorThatTheLayerGivesIsUsed) {
  auto draw_with = [](uint64_t seed) {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    return std::function<torch::Tensor(torch::Tensor)>([generator](torch::Tensor x) {
      return x * torch::bernoulli(torch::full_like(x, 0.5), generator);
    });
  };
  auto plain = draw_with(11);
  torch::Tensor x = torch::ones({8, 4});
  Tensors expected;
  for (const auto& part : x.chunk(4)) expected.push_back(plain(part));
  GPipe pipe(
      nn::Sequential(nn::Identity(), testing::layer<torch::Tensor, torch::Tensor>(draw_with(11))),
      options({1, 1}, 4, Checkpoint::kNever).devices({c10::kCPU, c10::kCPU}));
  Drawer drawer;
  drawer.start();
  EXPECT_THAT(pipe->forward(x), EqualsBitwise(torch::cat(expected)));
}

TEST(DrawsTest, DrawsOutsideAreNotTouched) {
  GPipe pipe(nn::Sequential(nn::Dropout(0.5)), options({1}, 2, Checkpoint::kAlways));
  pipe->forward(torch::ones({4, 4}, testing::device()));
  testing::manual_seed(3);
  const torch::Tensor before = torch::rand({4});
  pipe->forward(torch::ones({4, 4}, testing::device()));
  testing::manual_seed(3);
  EXPECT_THAT(torch::rand({4}), EqualsBitwise(before));
  EXPECT_FALSE(torch::equal(torch::rand({4}), before));
}

}  // namespace
}  // namespace gpipe
