#include "gpipe/internal/batch/micro_batch_loss.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// Eight rows are cut into micro-batches of 3, 3 and 2 rows, whose shares (3/8, 3/8, 1/4) are exact.
MiniBatch eight_rows() { return MiniBatch(8, 3); }

at::Tensor sum_of_first(const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); }

MicroBatchLoss make(const LossFn& loss_fn, const StepOptions& options = {},
                    const Tensors& targets = {}) {
  return MicroBatchLoss(targets, c10::kCPU, eight_rows(), loss_fn, options);
}

// Runs all micro-batches, whose losses are given, and returns the gradients at which they start.
Tensors seeds_of(MicroBatchLoss& loss, const std::vector<double>& losses) {
  Tensors seeds;
  for (size_t i = 0; i < losses.size(); ++i) {
    at::Tensor output = torch::zeros({eight_rows().sizes()[i]}, at::kDouble);
    output[0] = losses[i];
    seeds.push_back(loss(static_cast<int64_t>(i), {output.requires_grad_()}).seed);
  }
  return seeds;
}

at::Tensor number(double value) { return torch::tensor(value, at::kDouble); }

TEST(MicroBatchLoss, TheMeanIsOverTheRowsOfTheMiniBatch) {
  const LossFn loss_fn = sum_of_first;
  MicroBatchLoss loss = make(loss_fn);
  EXPECT_THAT(seeds_of(loss, {8, 16, 4}),
              EqualsBitwise(Tensors{number(0.375), number(0.375), number(0.25)}));
  EXPECT_EQ(total_loss(loss.values(), loss.shares()), 3 + 6 + 1);
}

TEST(MicroBatchLoss, TheSumCountsEachMicroBatchOnce) {
  const LossFn loss_fn = sum_of_first;
  MicroBatchLoss loss = make(loss_fn, StepOptions().reduction(LossReduction::kSum));
  EXPECT_THAT(seeds_of(loss, {8, 16, -4}), EqualsBitwise(Tensors(3, number(1))));
  EXPECT_EQ(total_loss(loss.values(), loss.shares()), 20);
}

TEST(MicroBatchLoss, ANanIsExplained) {
  const LossFn loss_fn = sum_of_first;
  const auto text_of = [&](const StepOptions& options, const std::vector<double>& losses) {
    MicroBatchLoss loss = make(loss_fn, options);
    seeds_of(loss, losses);
    return loss.nan_text(loss.values());
  };
  const auto one = [](const Tensors&) { return 1.0; };
  const auto find = HasSubstr("check_finite(true)");
  // If only some losses are NaN, the text also names StepOptions::weight, because these losses may
  // be means over nothing but padding.
  EXPECT_THAT(text_of(StepOptions(), {1, kNan, 2}),
              AllOf(HasSubstr("the loss of micro-batch 1 is nan"),
                    HasSubstr("those of 2 of 3 micro-batches are not"),
                    HasSubstr("StepOptions::weight"), find));
  for (const StepOptions& options :
       {StepOptions(), StepOptions().weight(one), StepOptions().reduction(LossReduction::kSum)}) {
    EXPECT_THAT(text_of(options, {kNan, kNan, kNan}),
                AllOf(HasSubstr("nan in 3 of 3 micro-batches, from micro-batch 0 on"), find,
                      Not(HasSubstr("padding"))));
    EXPECT_THAT(text_of(options, {kInfinity, 1, -kInfinity}),
                AllOf(HasSubstr("infinite, with both signs"), find));
  }
}

TEST(MicroBatchLoss, AWeightComesFromTheTargetsAndReplacesTheRows) {
  const LossFn loss_fn = sum_of_first;
  const auto options =
      StepOptions().weight([](const Tensors& t) { return t.at(0).sum().item<double>(); });
  const at::Tensor target = torch::tensor({1., 0., 0., 2., 3., 0., 1., 1.});
  MicroBatchLoss loss = make(loss_fn, options, {target});
  EXPECT_THAT(seeds_of(loss, {8, 16, 4}),
              EqualsBitwise(Tensors{number(0.125), number(0.625), number(0.25)}));
  EXPECT_EQ(total_loss(loss.values(), loss.shares()), 1 + 10 + 1);
}

TEST(MicroBatchLoss, AMicroBatchOfWeightZeroDoesNotCountWhateverItsLoss) {
  const LossFn loss_fn = sum_of_first;
  const auto options =
      StepOptions().weight([](const Tensors& t) { return t.at(0).sum().item<double>(); });
  const at::Tensor target = torch::tensor({1., 0., 0., 0., 0., 0., 1., 0.});
  MicroBatchLoss loss = make(loss_fn, options, {target});
  EXPECT_THAT(seeds_of(loss, {8, kNan, 4}),
              EqualsBitwise(Tensors{number(0.5), at::Tensor(), number(0.5)}));
  EXPECT_EQ(total_loss(loss.values(), loss.shares()), 6);
}

TEST(MicroBatchLoss, ANanThatCountsMakesTheTotalNan) {
  const LossFn loss_fn = sum_of_first;
  MicroBatchLoss loss = make(loss_fn);
  (void)seeds_of(loss, {8, kNan, 4});
  EXPECT_TRUE(std::isnan(total_loss(loss.values(), loss.shares())));
}

TEST(MicroBatchLoss, TheSeedFitsTheLossAndBelongsToNoGraph) {
  at::Tensor returned_loss;
  const LossFn loss_fn = [&](const Tensors& outputs, const Tensors&) {
    return returned_loss = outputs.at(0).sum().reshape({1, 1});
  };
  MicroBatchLoss loss = make(loss_fn);
  const LossResult result =
      loss(2, {torch::ones({2}, torch::dtype(at::kBFloat16).requires_grad(true))});
  EXPECT_TRUE(result.loss.is_same(returned_loss));
  EXPECT_THAT(result.seed, EqualsBitwise(torch::full({1, 1}, 0.25, at::kBFloat16)));
  EXPECT_FALSE(result.seed.requires_grad());
}

TEST(MicroBatchLoss, EachMicroBatchIsGivenItsOutputsAndItsTargets) {
  Tensors outputs_seen;
  Tensors targets_seen;
  const LossFn loss_fn = [&](const Tensors& outputs, const Tensors& targets) {
    outputs_seen = outputs;
    targets_seen = targets;
    return outputs.at(0).sum();
  };
  const at::Tensor target = torch::arange(16).view({8, 2});
  MicroBatchLoss loss = make(loss_fn, {}, {target, at::Tensor(), target.to(at::kFloat)});
  const Tensors outputs = {torch::randn({2, 5}).requires_grad_(), at::Tensor()};
  const LossResult result = loss(2, outputs);
  ASSERT_EQ(outputs_seen.size(), 2u);
  EXPECT_TRUE(outputs_seen[0].is_same(outputs[0]));
  const at::Tensor rows = target.narrow(0, 6, 2);
  EXPECT_THAT(targets_seen, EqualsBitwise(Tensors{rows, at::Tensor(), rows.to(at::kFloat)}));
  EXPECT_EQ(result.targets.node(), nullptr) << "nobody wants a gradient";
  (void)loss(0, {torch::randn({3}).requires_grad_()});
  EXPECT_THAT(targets_seen[0], EqualsBitwise(target.narrow(0, 0, 3)));
}

TEST(MicroBatchLoss, WithoutTargetsTheirListIsEmpty) {
  size_t given = 1;
  const LossFn loss_fn = [&](const Tensors& outputs, const Tensors& targets) {
    given = targets.size();
    return outputs.at(0).sum();
  };
  MicroBatchLoss loss = make(loss_fn);
  (void)loss(0, {torch::ones({3}).requires_grad_()});
  EXPECT_EQ(given, 0u);
}

TEST(MicroBatchLoss, GradientsOfTargetsEndInTheirPacket) {
  const LossFn loss_fn = [](const Tensors& outputs, const Tensors& targets) {
    return (outputs.at(0) * targets.at(1)).sum() + targets.at(0).sum();
  };
  const at::Tensor plain = torch::ones({8});
  const at::Tensor wanting = torch::ones({8}).requires_grad_();
  MicroBatchLoss loss = make(loss_fn, {}, {plain, wanting, wanting * 2});
  const at::Tensor output = torch::tensor({3.f, 5.f}).requires_grad_();
  LossResult result = loss(2, {output});
  torch::autograd::backward({result.loss}, {result.seed});
  EXPECT_THAT(output.grad(), EqualsBitwise(torch::full({2}, 0.25f)));
  const std::vector<Packet> gradients = result.targets.take();
  ASSERT_EQ(gradients.size(), 1u);
  ASSERT_EQ(gradients[0].items.size(), 3u);
  EXPECT_FALSE(gradients[0].items[0].tensor.defined());
  EXPECT_THAT(gradients[0].items[1].tensor, EqualsBitwise(torch::tensor({0.75f, 1.25f})));
  EXPECT_FALSE(gradients[0].items[2].tensor.defined()) << "the loss did not use it";
  EXPECT_FALSE(wanting.grad().defined());
}

TEST(MicroBatchLoss, RefusesTargetsThatDoNotFit) {
  const LossFn loss_fn = sum_of_first;
  auto text = [&](const Tensors& targets) {
    return refusal([&] { (void)make(loss_fn, {}, targets); });
  };
  const at::Tensor good = torch::zeros({8});
  EXPECT_THAT(text({torch::zeros({7})}), HasSubstr("targets have 7 rows"));
  EXPECT_THAT(text({torch::zeros({7})}), HasSubstr("the inputs have 8"));
  EXPECT_THAT(text({good, torch::zeros({7})}), HasSubstr("target 1 has 7 rows"));
  EXPECT_THAT(text({good, torch::zeros({})}), HasSubstr("target 1 has no dimension"));
  EXPECT_THAT(text({at::Tensor()}), HasSubstr("no defined tensor"));
  EXPECT_THAT(text({good, torch::zeros({8}, at::kMeta)}),
              HasSubstr("target 1 is on meta, but the last partition is on cpu"));
  EXPECT_EQ(text({good, at::Tensor()}), "");
}

TEST(MicroBatchLoss, RefusesWeightsWithoutAMean) {
  const LossFn loss_fn = sum_of_first;
  auto text = [&](const std::vector<double>& weights,
                  LossReduction reduction = LossReduction::kMean) {
    size_t next = 0;
    const auto weight = [&](const Tensors&) { return weights.at(next++); };
    return refusal([&] { (void)make(loss_fn, StepOptions().weight(weight).reduction(reduction)); });
  };
  EXPECT_THAT(text({1, -0.5, 1}), HasSubstr("micro-batch 1 must be a finite number"));
  EXPECT_THAT(text({1, 1, kNan}), HasSubstr("micro-batch 2 must be"));
  EXPECT_THAT(text({kInfinity, 1, 1}), HasSubstr("micro-batch 0 must be"));
  EXPECT_THAT(text({0, 0, 0}), HasSubstr("add up to 0"));
  EXPECT_THAT(text({1e308, 1e308, 0}), HasSubstr("add up to inf"));
  EXPECT_THAT(text({1, 1, 1}, LossReduction::kSum), HasSubstr("give one of the two"));
  EXPECT_EQ(text({0, 1, 0}), "");
}

TEST(MicroBatchLoss, RefusesAReductionThatThereIsNot) {
  const LossFn loss_fn = sum_of_first;
  const auto options = StepOptions().reduction(static_cast<LossReduction>(7));
  EXPECT_THAT(refusal([&] { (void)make(loss_fn, options); }), HasSubstr("got the number 7"));
}

// A sum over nothing is 0; a mean over nothing is not defined.
TEST(MicroBatchLoss, AnEmptyMiniBatchHasASumButNoMean) {
  const LossFn loss_fn = sum_of_first;
  auto run = [&](LossReduction reduction) {
    MicroBatchLoss loss({}, c10::kCPU, MiniBatch(0, 3), loss_fn,
                        StepOptions().reduction(reduction));
    (void)loss(0, {torch::zeros({0}).requires_grad_()});
    return total_loss(loss.values(), loss.shares());
  };
  EXPECT_THAT(refusal([&] { run(LossReduction::kMean); }), HasSubstr("empty mini-batch"));
  EXPECT_EQ(run(LossReduction::kSum), 0);
}

TEST(MicroBatchLoss, RefusesALossThatIsNotARealNumberWithAGradient) {
  auto text = [&](const LossFn& loss_fn) {
    MicroBatchLoss loss = make(loss_fn);
    return refusal([&] { (void)loss(0, {torch::ones({3, 2}).requires_grad_()}); });
  };
  EXPECT_THAT(text([](const Tensors&, const Tensors&) { return at::Tensor(); }),
              HasSubstr("got an undefined tensor"));
  EXPECT_THAT(text([](const Tensors& o, const Tensors&) { return o[0].sum(0); }),
              HasSubstr("got a tensor of shape [2]"));
  EXPECT_THAT(text([](const Tensors& o, const Tensors&) { return o[0].narrow(0, 0, 0); }),
              HasSubstr("got a tensor of shape [0, 2]"));
  EXPECT_THAT(
      text([](const Tensors& o, const Tensors&) { return o[0].sum().to(at::kComplexFloat); }),
      HasSubstr("must be a real number"));
  EXPECT_THAT(text([](const Tensors& o, const Tensors&) { return o[0].sum().detach(); }),
              HasSubstr("needs no gradient"));
  EXPECT_EQ(text([](const Tensors& o, const Tensors&) { return o[0].sum().view({1}); }), "");
}

// Outputs without the micro-batch's rows are refused before the loss function is called, and so are
// scalars, whether outputs are kept or not.
TEST(MicroBatchLoss, RefusesOutputsWithoutTheRowsOfTheMicroBatch) {
  bool called = false;
  const LossFn loss_fn = [&](const Tensors& outputs, const Tensors&) {
    called = true;
    return outputs.at(0).sum();
  };
  auto text = [&](int64_t i, const at::Tensor& second, bool keep) {
    called = false;
    MicroBatchLoss loss = make(loss_fn, StepOptions().keep_outputs(keep));
    const int64_t rows = eight_rows().sizes()[i];
    return refusal([&] { (void)loss(i, {torch::ones({rows}).requires_grad_(), second}); });
  };
  for (const bool keep : {false, true}) {
    EXPECT_THAT(text(2, torch::ones({3}), keep), HasSubstr("output 1")) << keep;
    EXPECT_FALSE(called);
    EXPECT_EQ(text(0, torch::ones({3}), keep), "") << keep;
    EXPECT_EQ(text(0, at::Tensor(), keep), "") << keep;
  }
  for (const bool keep : {false, true}) {
    EXPECT_THAT(text(0, torch::ones({}), keep), HasSubstr("output 1 of the model is a scalar"));
  }
}

}  // namespace
}  // namespace gpipe::internal
