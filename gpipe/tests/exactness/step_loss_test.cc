// Tests losses of every kind in GPipe::step, with reductions, weights, gradients of targets,
// earlier outputs.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/log_capture.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/torch_seed.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using ::testing::AllOf;
using testing::BackwardOrder;
using testing::cpu_options;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::layer;
using testing::PlainModel;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int64_t kWords = 11;
constexpr int64_t kPadding = -100;

// A model that maps word ids of shape (N, T) to logits of shape (N, T, kWords).
nn::Sequential language_model() {
  testing::manual_seed(1);
  return nn::Sequential(nn::Embedding(kWords, 6), nn::Linear(6, 8), nn::Tanh(),
                        nn::Linear(8, kWords));
}

Tensor token_loss(const Tensors& outputs, const Tensors& targets) {
  return F::cross_entropy(outputs.at(0).reshape({-1, kWords}), targets.at(0).reshape({-1}),
                          F::CrossEntropyFuncOptions().ignore_index(kPadding));
}

Tensor token_loss_sum(const Tensors& outputs, const Tensors& targets) {
  return F::cross_entropy(
      outputs.at(0).reshape({-1, kWords}), targets.at(0).reshape({-1}),
      F::CrossEntropyFuncOptions().ignore_index(kPadding).reduction(torch::kSum));
}

double count_tokens(const Tensors& targets) {
  return targets.at(0).ne(kPadding).sum().item<double>();
}

// Seven sentences of very different lengths. With two sentences in a micro-batch, the fourth
// micro-batch is all padding.
std::pair<Tensor, Tensor> sentences() {
  const Tensor words = torch::randint(kWords, {7, 5});
  Tensor targets = torch::randint(kWords, {7, 5});
  const std::vector<int64_t> lengths = {5, 1, 2, 5, 1, 0, 0};
  for (int64_t n = 0; n < 7; ++n) targets[n].slice(0, lengths[n]).fill_(kPadding);
  return {words, targets};
}

TEST(StepLoss, OfAPaddedLanguageModelIsThatOfTheWholeBatch) {
  at::set_num_threads(1);
  const auto [words, targets] = sentences();
  nn::Sequential plain = language_model();
  const Tensor want = token_loss({plain->forward(words)}, {targets});
  want.backward();
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    for (int64_t chunks : {1, 3, 4, 7}) {
      GPipe pipe(language_model(), cpu_options({2, 1, 1}).chunks(chunks).checkpoint(mode));
      const StepResult have =
          pipe->step({words}, {targets}, token_loss, StepOptions().weight(count_tokens));
      // Sums over micro-batches are rounded differently from a sum over the batch.
      EXPECT_NEAR(have.loss, want.item<double>(), 1e-6);
      const auto parameters = pipe->named_parameters();
      for (const auto& parameter : plain->named_parameters()) {
        EXPECT_TRUE(torch::allclose(parameters[parameter.key()].grad(), parameter.value().grad(),
                                    /*rtol=*/1e-5, /*atol=*/1e-7))
            << parameter.key();
      }
    }
  }
}

// The mean over nothing is NaN, with or without a pipeline. So one warning tells that weights are
// missing. micro_batch_loss_test tests what it says in other cases.
TEST(StepLoss, ALossThatIsNanIsExplainedOnceInAProcess) {
  const auto [words, targets] = sentences();
  const testing::LogCapture log;
  GPipe infinite(nn::Sequential(nn::Linear(1, 1)), cpu_options({1}));
  infinite->step({torch::ones({2, 1})}, {}, [](const Tensors& o, const Tensors&) {
    return o.at(0).sum() + std::numeric_limits<double>::infinity();
  });
  EXPECT_THAT(log.warnings(), ::testing::IsEmpty());
  for (size_t pipeline = 0; pipeline < 2; ++pipeline) {
    GPipe pipe(language_model(), cpu_options({2, 1, 1}).chunks(4));
    EXPECT_FALSE(std::isnan(
        pipe->step({words}, {targets}, token_loss, StepOptions().weight(count_tokens)).loss));
    EXPECT_EQ(log.warnings().size(), pipeline);
    for (const bool evaluates : {true, false}) {
      const StepResult result = evaluates ? pipe->evaluate({words}, {targets}, token_loss)
                                          : pipe->step({words}, {targets}, token_loss);
      EXPECT_TRUE(std::isnan(result.loss));
      EXPECT_THAT(log.warnings(),
                  ::testing::ElementsAre(HasSubstr("the loss of micro-batch 3 is nan")));
    }
  }
}

TEST(StepLoss, OfASumIsTheSum) {
  at::set_num_threads(1);
  const auto [words, targets] = sentences();
  nn::Sequential plain = language_model();
  const Tensor want = token_loss_sum({plain->forward(words)}, {targets});
  want.backward();
  GPipe pipe(language_model(), cpu_options({2, 1, 1}).chunks(3));
  const StepResult have =
      pipe->step({words}, {targets}, token_loss_sum, StepOptions().reduction(LossReduction::kSum));
  // Sums over micro-batches are rounded differently here, too.
  EXPECT_NEAR(have.loss, want.item<double>(), 1e-4);
  const auto parameters = pipe->named_parameters();
  for (const auto& parameter : plain->named_parameters()) {
    EXPECT_TRUE(torch::allclose(parameters[parameter.key()].grad(), parameter.value().grad(),
                                /*rtol=*/1e-5, /*atol=*/1e-5))
        << parameter.key();
  }
}

// The results must be exactly those of the same weights applied by hand.
TEST(StepLoss, WeightsScaleEachMicroBatchExactly) {
  at::set_num_threads(1);
  const auto [words, targets] = sentences();
  const std::vector<std::pair<int64_t, int64_t>> pieces = {{0, 3}, {3, 3}, {6, 1}};
  nn::Sequential plain = language_model();
  double total = 0, want = 0;
  for (const auto& [start, rows] : pieces) total += count_tokens({targets.narrow(0, start, rows)});
  for (const auto& [start, rows] : pieces) {
    const Tensor target = targets.narrow(0, start, rows);
    const double weight = count_tokens({target}) / total;
    if (weight == 0) continue;
    const Tensor loss = token_loss({plain->forward(words.narrow(0, start, rows))}, {target});
    loss.backward(torch::full({}, weight));
    want += weight * loss.item<double>();
  }
  GPipe pipe(language_model(), cpu_options({2, 1, 1}).chunks(3));
  EXPECT_EQ(pipe->step({words}, {targets}, token_loss, StepOptions().weight(count_tokens)).loss,
            want);
  const auto parameters = pipe->named_parameters();
  for (const auto& parameter : plain->named_parameters()) {
    EXPECT_THAT(parameters[parameter.key()].grad(), EqualsBitwise(parameter.value().grad()))
        << parameter.key();
  }
}

// A loss need not depend on any parameter if its weight is 0.
TEST(StepLoss, AConstantLossOfAMicroBatchWithoutWeightDoesNotCount) {
  const auto [words, targets] = sentences();
  const Tensor padded = targets.clone();
  padded.narrow(0, 0, 3).fill_(kPadding);  // the last one is all padding anyway
  const LossFn loss = [](const Tensors& outputs, const Tensors& given) {
    if (count_tokens(given) == 0) return torch::zeros({});
    return token_loss(outputs, given);
  };
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    GPipe pipe(language_model(), cpu_options({2, 2}).chunks(3).checkpoint(mode));
    GPipe usual(language_model(), cpu_options({2, 2}).chunks(3).checkpoint(mode));
    const StepOptions options = StepOptions().weight(count_tokens);
    EXPECT_EQ(pipe->step({words}, {padded}, loss, options).loss,
              usual->step({words}, {padded}, token_loss, options).loss);
    for (const auto& parameter : usual->named_parameters()) {
      EXPECT_THAT(pipe->named_parameters()[parameter.key()].grad(),
                  EqualsBitwise(parameter.value().grad()));
    }
    // A constant loss whose weight is not 0 is still refused.
    const LossFn constant = [](const Tensors&, const Tensors&) { return torch::zeros({}); };
    EXPECT_THROW(pipe->step({words}, {padded}, constant, options), c10::ValueError);
  }
}

TEST(StepLoss, WeightsThatMakeNoSenseAreRefused) {
  const auto [words, targets] = sentences();
  GPipe pipe(language_model(), cpu_options({2, 2}).chunks(3));
  auto step = [&, words = words, targets = targets](const StepOptions& with) {
    return [&, words, targets, with] { pipe->step({words}, {targets}, token_loss, with); };
  };
  auto refused = [](const char* text) { return ThrowsMessage<c10::ValueError>(HasSubstr(text)); };
  EXPECT_THAT(step(StepOptions().weight([](const Tensors&) { return -1.0; })),
              refused("0 or more, got -1"));
  EXPECT_THAT(step(StepOptions().weight([](const Tensors&) { return std::nan(""); })),
              refused("finite"));
  EXPECT_THAT(step(StepOptions().weight([](const Tensors&) { return 0.0; })),
              refused("add up to 0"));
  EXPECT_THAT(step(StepOptions().weight(count_tokens).reduction(LossReduction::kSum)),
              refused("one of the two"));
  EXPECT_THAT(step(StepOptions().reduction(static_cast<LossReduction>(7))),
              refused("kMean and kSum"));
  for (const Tensor& parameter : pipe->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

// --- targets

TEST(StepLoss, TargetsThatWantAGradientGetIt) {
  at::set_num_threads(1);
  auto loss = [](const Tensors& o, const Tensors& t) {
    return ((o.at(0) - t.at(0)) * t.at(1) + t.at(2).to(torch::kFloat).unsqueeze(1)).pow(2).mean();
  };
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    testing::manual_seed(2);
    nn::Linear linear(4, 4);
    nn::Sequential module(linear, nn::Tanh());
    const Tensor x = torch::randn({5, 4});
    const Tensor w = torch::randn({4, 4}).requires_grad_();
    std::vector<std::vector<Tensor>> results;
    for (bool pipeline : {false, true}) {
      const Tensor input = x.clone().requires_grad_();
      const Tensor leaf = torch::ones({5, 4}).requires_grad_();
      w.mutable_grad() = Tensor();
      linear->zero_grad();
      // The three targets are a tensor with a graph of its own, the input itself, and a tensor that
      // requires no gradient.
      const Tensor computed = x.matmul(w);
      const Tensor numbers = torch::arange(5);
      if (pipeline) {
        GPipe pipe(module, cpu_options({1, 1}).chunks(2).checkpoint(mode));
        pipe->step({input}, {computed, leaf, numbers}, loss);
      } else {
        PlainModel(module, 2).step({input}, {computed.detach(), leaf, numbers}, loss,
                                   BackwardOrder::kAscending);
        // The plain model gets the gradient of the computed target from a leaf in its place.
        const Tensor target = computed.detach().requires_grad_();
        linear->zero_grad();
        input.mutable_grad() = Tensor();
        leaf.mutable_grad() = Tensor();
        PlainModel(module, 2).step({input}, {target, leaf, numbers}, loss,
                                   BackwardOrder::kAscending);
        torch::autograd::backward({computed}, {target.grad()});
      }
      results.push_back({input.grad(), leaf.grad(), w.grad(), linear->weight.grad().clone()});
    }
    EXPECT_THAT(results[1], EqualsBitwise(results[0]));
  }
}

TEST(StepLoss, ATargetThatIsTheInputGetsBothGradients) {
  GPipe pipe(nn::Sequential(layer<Tensor, Tensor>([](Tensor x) { return x * 3; })),
             cpu_options({1}).chunks(2));
  const Tensor x = torch::ones({4, 1}).requires_grad_();
  pipe->step({x}, {x}, [](const Tensors& o, const Tensors& t) { return (o[0] * t[0]).mean(); });
  EXPECT_THAT(x.grad(), EqualsBitwise(torch::full({4, 1}, 1.5)));  // 6 x / 4
}

TEST(StepLoss, AnIndexBehindTheTargetsIsAnErrorWithAMessage) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4)), cpu_options({1}).chunks(2));
  auto mse = [](const Tensors& o, const Tensors& t) { return F::mse_loss(o[0], t[0]); };
  EXPECT_THAT(
      [&] {
        pipe->step({torch::randn({4, 4})}, {}, mse);
      },
      ThrowsMessage<c10::Error>(
          AllOf(HasSubstr("undefined Tensor"), HasSubstr("the loss function"))));
  auto outputs = [](const Tensors& o, const Tensors&) { return F::mse_loss(o[0], o[1]); };
  EXPECT_THAT(
      [&] {
        pipe->step({torch::randn({4, 4})}, {}, outputs);
      },
      ThrowsMessage<c10::Error>(HasSubstr("undefined Tensor")));
  auto none = [](const Tensors& o, const Tensors& t) {
    EXPECT_EQ(t.size(), 0u);
    EXPECT_EQ(o.size(), 1u);
    return o.at(0).mean();
  };
  pipe->step({torch::randn({4, 4})}, {}, none);
}

// --- Losses that use earlier outputs of a pipeline.

TEST(StepLoss, AnEarlierOutputInALossOrALayerIsAnErrorAndNoHang) {
  const testing::Watchdog watchdog(std::chrono::seconds(60), "a loss with an earlier output");
  for (const auto& balance : std::vector<std::vector<int64_t>>{{2}, {1, 1}}) {
    Tensor earlier;
    auto mixes = layer<Tensor, Tensor>(
        [&earlier](Tensor x) { return earlier.defined() ? x + earlier.mean() : x; });
    GPipe pipe(nn::Sequential(nn::Linear(4, 4), mixes), cpu_options(balance).chunks(2));
    const Tensor x = torch::randn({4, 4});
    const Tensor output = pipe->forward(x);
    auto refused =
        ThrowsMessage<c10::Error>(AllOf(HasSubstr("earlier output"), HasSubstr("detach()")));
    EXPECT_THAT(([&] {
                  pipe->step({x}, {}, [&](const Tensors& o, const Tensors&) {
                    return (o.at(0).mean() - output.mean()).pow(2);
                  });
                }),
                refused);
    earlier = output;
    EXPECT_THAT([&] { pipe->forward(x).sum().backward(); }, refused);
    earlier = output.detach();
    pipe->step({x}, {}, [](const Tensors& o, const Tensors&) { return o.at(0).mean(); });
  }
}

// A path that bypasses the pipeline, from a layer of one stage to a layer of another, must be an
// error and no hang.
TEST(StepLoss, AHiddenWayBetweenStagesIsAnError) {
  const testing::Watchdog watchdog(std::chrono::seconds(60), "a hidden way");
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    Tensor kept;
    auto keeps = layer<Tensor, Tensor>([&kept](Tensor x) { return kept = x * 2; });
    auto uses = layer<Tensor, Tensor>([&kept](Tensor x) { return x + kept; });
    GPipe pipe(nn::Sequential(nn::Linear(4, 4), keeps, nn::Tanh(), uses),
               cpu_options({1, 1, 2}).checkpoint(mode));
    EXPECT_THAT(
        [&] {
          pipe->forward(torch::randn({4, 4})).sum().backward();
        },
        ThrowsMessage<c10::Error>(HasSubstr("does not see")));
  }
}

}  // namespace
}  // namespace gpipe
