// Compares random models, balances, chunks, modes, schedules and entries with the plain model,
// bitwise.
//
// GPIPE_TEST_SEED chooses other draws than the fixed ones, and GPIPE_PROPERTY_DRAWS how many.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/number_from.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/seed.h"
#include "skip/skippable.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::BackwardOrder;
using testing::EqualsBitwise;
using testing::number_from;
using testing::PlainModel;

constexpr int64_t kWidth = 5;

struct StashImpl : nn::Module, skip::Skippable {
  explicit StashImpl(const skip::Namespace& ns) : Skippable({"skip"}, {}) { isolate(ns); }
  // The stashed tensor is a tensor of its own, because the gradient of one tensor that takes
  // several routes is exact only up to the order of sums.
  torch::Tensor forward(torch::Tensor x) {
    stash("skip", x * 0.5);
    return x;
  }
};
TORCH_MODULE(Stash);

struct PopImpl : nn::Module, skip::Skippable {
  PopImpl(const skip::Namespace& ns, bool use) : Skippable({}, {"skip"}), use(use) { isolate(ns); }
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor skip = pop("skip");
    return use ? x + skip : x;
  }
  bool use;
};
TORCH_MODULE(Pop);

// Open and Close are layers that pass several values, one of them an integer, from the first to the
// second.
struct OpenImpl : nn::Module {
  Tensors forward(torch::Tensor x) {
    return {torch::arange(x.size(0), torch::kLong), x.sin(), x.detach()};
  }
};
TORCH_MODULE(Open);

struct CloseImpl : nn::Module {
  torch::Tensor forward(Tensors v) {
    return v[1] + v[2] * 0.1 + v[0].to(v[1].dtype()).unsqueeze(1) * 0.01;
  }
};
TORCH_MODULE(Close);

using Random = std::mt19937_64;

int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

nn::Sequential random_model(Random random) {  // a copy, so that calls agree
  torch::manual_seed(static_cast<int64_t>(random() % 1000000));
  nn::Sequential model;
  std::vector<skip::Namespace> open;
  const int64_t length = pick(random, 3, 9);
  for (int64_t k = 0; k < length; ++k) {
    switch (pick(random, 0, 8)) {
      case 0:
      case 1: {
        nn::Linear linear(kWidth, kWidth);
        if (pick(random, 0, 3) == 0) {
          for (auto& p : linear->parameters()) p.requires_grad_(false);
        }
        model->push_back(linear);
        break;
      }
      case 2:
        model->push_back(nn::Tanh());
        break;
      case 3:
        model->push_back(nn::Dropout(0.4));
        break;
      case 4:
        model->push_back(nn::BatchNorm1d(kWidth));
        break;
      case 5:
        model->push_back(nn::ReLU());
        break;
      case 6:
        open.emplace_back();
        model->push_back(Stash(open.back()));
        break;
      case 7:
        if (!open.empty()) {
          const auto popped = open.begin() + pick(random, 0, static_cast<int64_t>(open.size()) - 1);
          model->push_back(Pop(*popped, pick(random, 0, 4) != 0));
          open.erase(popped);
        }
        break;
      default:
        model->push_back(Open());
        model->push_back(Close());
    }
  }
  for (const skip::Namespace& ns : open) model->push_back(Pop(ns, true));
  model->push_back(nn::Linear(kWidth, 2));
  return model;
}

std::vector<int64_t> random_balance(Random& random, int64_t layers, int64_t partitions) {
  std::vector<int64_t> balance(partitions, 1);
  for (int64_t k = partitions; k < layers; ++k) ++balance[pick(random, 0, partitions - 1)];
  return balance;
}

std::string texts(const std::vector<Checkpoint>& modes) {
  std::string result;
  for (Checkpoint mode : modes) result += std::string(to_text(mode)) + ", ";
  return result;
}

void expect_equal(const torch::OrderedDict<std::string, torch::Tensor>& want,
                  const torch::OrderedDict<std::string, torch::Tensor>& have, bool gradients) {
  ASSERT_EQ(want.keys(), have.keys());
  for (const auto& entry : want) {
    const torch::Tensor a = gradients ? entry.value().grad() : entry.value();
    const torch::Tensor b = gradients ? have[entry.key()].grad() : have[entry.key()];
    ASSERT_EQ(a.defined(), b.defined()) << entry.key();
    if (a.defined()) {
      EXPECT_THAT(b, EqualsBitwise(a)) << entry.key();
    }
  }
}

TEST(Property, RandomPipelinesEqualThePlainModelBitwise) {
  at::set_num_threads(1);
  const uint64_t seed = testing::test_seed();
  const uint64_t draws = number_from("GPIPE_PROPERTY_DRAWS", 500);
  LossFn loss_fn = [](const Tensors& outputs, const Tensors& targets) {
    return nn::functional::mse_loss(outputs[0], targets[0]);
  };
  for (uint64_t draw = 0; draw < draws && !::testing::Test::HasFailure(); ++draw) {
    Random random(seed + draw);
    const Random model_random(random());
    nn::Sequential plain_module = random_model(model_random);
    nn::Sequential pipe_module = random_model(model_random);
    const int64_t layers = static_cast<int64_t>(plain_module->size());
    const int64_t partitions = pick(random, 1, std::min<int64_t>(4, layers));
    const std::vector<int64_t> balance = random_balance(random, layers, partitions);
    const int64_t chunks = pick(random, 1, 5);
    std::vector<Checkpoint> modes(partitions, static_cast<Checkpoint>(pick(random, 0, 2)));
    if (pick(random, 0, 2) == 0) {  // each partition gets a mode of its own
      for (Checkpoint& mode : modes) mode = static_cast<Checkpoint>(pick(random, 0, 2));
    }
    const int64_t entry = pick(random, 0, 2);
    // Each micro-batch has at least two rows, because batch norm refuses one.
    const int64_t rows = chunks * pick(random, 2, 3);
    SCOPED_TRACE("GPIPE_TEST_SEED=" + std::to_string(seed + draw) +
                 " GPIPE_PROPERTY_DRAWS=1: balance " + ::testing::PrintToString(balance) +
                 ", chunks " + std::to_string(chunks) + ", checkpoints " + texts(modes) + "entry " +
                 std::to_string(entry));
    PlainModel plain(plain_module, chunks);
    GPipe pipe(pipe_module, GPipeOptions(balance)
                                .devices(std::vector<c10::Device>(partitions, c10::kCPU))
                                .chunks(chunks)
                                .partition_checkpoints(modes));
    const bool input_grad = pick(random, 0, 1) == 1;
    torch::manual_seed(random() % 1000000);
    const torch::Tensor plain_input = torch::randn({rows, kWidth}).requires_grad_(input_grad);
    const torch::Tensor pipe_input = plain_input.detach().clone().requires_grad_(input_grad);
    const Tensors targets = {torch::randn({rows, 2})};
    for (int64_t round = 0; round < 2; ++round) {
      StepResult want;
      StepResult have;
      torch::manual_seed(round);
      if (entry == 0) {
        want = plain.forward_backward({plain_input}, targets, loss_fn);
        torch::manual_seed(round);
        have.outputs = pipe->forward(Tensors{pipe_input});
        const torch::Tensor loss = loss_fn(have.outputs, targets);
        loss.backward();
        have.loss = loss.item<double>();
      } else {
        want = plain.step({plain_input}, targets, loss_fn,
                          entry == 1 ? BackwardOrder::kAscending : BackwardOrder::kDescending);
        torch::manual_seed(round);
        StepOptions options;
        options.keep_outputs(true);
        if (entry == 2) options.schedule(Schedule::gpipe);
        have = pipe->step({pipe_input}, targets, loss_fn, options);
      }
      EXPECT_EQ(want.loss, have.loss);
      EXPECT_THAT(have.outputs[0], EqualsBitwise(want.outputs[0]));
      expect_equal(plain_module->named_parameters(), pipe->named_parameters(), /*gradients=*/true);
      expect_equal(plain_module->named_buffers(), pipe->named_buffers(), /*gradients=*/false);
      if (input_grad) {
        ASSERT_EQ(plain_input.grad().defined(), pipe_input.grad().defined());
        if (plain_input.grad().defined()) {
          EXPECT_THAT(pipe_input.grad(), EqualsBitwise(plain_input.grad()));
        }
      }
    }
  }
  RecordProperty("seed", std::to_string(seed));
  std::cout << draws << " draws from seed " << seed << "\n";
}

}  // namespace
}  // namespace gpipe
