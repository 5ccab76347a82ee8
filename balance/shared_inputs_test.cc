// Inputs that all micro-batches share (GPipeOptions::shared_inputs), in profiles and plans.
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

#include "balance/choose/fit.h"
#include "balance/choose/plan.h"
#include "balance/choose/plan_options.h"
#include "balance/costs/first_rows.h"
#include "balance/costs/flops.h"
#include "balance/costs/profiler.h"
#include "balance/memory/memory_plan.h"
#include "gpipe/gpipe.h"
#include "gpipe/several_arguments.h"
#include "gpipe/testing/bitwise.h"
#include "meta/meta_scope.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

constexpr int64_t kWidth = 16;
constexpr int64_t kRows = 8;
constexpr int64_t kBytes = 4;  // bytes of a float
const std::vector<int64_t> kMask = {1};

// A layer that computes linear(x) * mask. SeveralArguments passes the mask on as a second output.
struct MaskedImpl : nn::Module {
  MaskedImpl() { linear = register_module("linear", nn::Linear(kWidth, kWidth)); }
  Tensor forward(Tensor x, Tensor mask) { return linear->forward(x) * mask; }
  nn::Linear linear{nullptr};
};

nn::Sequential masked_model() {
  return nn::Sequential(SeveralArguments<MaskedImpl>(), SeveralArguments<MaskedImpl>(), First());
}

nn::Sequential masked_model_on_meta() {
  const MetaScope scope;
  return masked_model();
}

// The mask has kWidth numbers and no rows.
Tensors inputs_on(c10::Device device) {
  const auto options = at::TensorOptions().device(device);
  if (device.is_meta()) return {at::empty({kRows, kWidth}, options), at::empty({kWidth}, options)};
  return {at::rand({kRows, kWidth}, options), at::rand({kWidth}, options)};
}

Tensor sum(const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); }

Training training(c10::Device device) {
  Training training;
  training.make = masked_model;
  training.inputs = inputs_on(device);
  training.loss = sum;
  training.shared_inputs = kMask;
  return training;
}

TEST(SharedInputs, StayWholeInASmallerMiniBatch) {
  const Tensors whole = {at::rand({8, 2}), at::rand({1, 3}), Tensor(), at::rand({})};
  const Tensors part = first_rows(whole, 3, {1});
  ASSERT_THAT(part, SizeIs(4));
  EXPECT_THAT(part[0], testing::EqualsBitwise(whole[0].narrow(0, 0, 3)));
  EXPECT_TRUE(part[1].is_same(whole[1]));
  EXPECT_FALSE(part[2].defined());
  EXPECT_TRUE(part[3].is_same(whole[3]));
}

TEST(SharedInputs, AreProfiled) {
  const nn::Sequential model = masked_model();
  const Tensors inputs = inputs_on(c10::kCPU);
  const Profile measured = profile(
      model, inputs, ProfileOptions().timeout(1e-9).micro_batch_rows(2).shared_inputs(kMask));
  EXPECT_EQ(measured.batch_rows, 2);
  EXPECT_EQ(measured.input, 2 * kWidth * kBytes);  // without the mask, which exists once
  EXPECT_GT(measured.layers.at(1).backward, 0);
  EXPECT_THAT(profile_times(model, inputs, TimeOptions().timeout(1e-9).shared_inputs(kMask)),
              SizeIs(3));
  EXPECT_THAT(profile_sizes(model, inputs, SizeOptions().shared_inputs(kMask)), SizeIs(3));
  EXPECT_THAT([&] { (void)profile(model, inputs); },
              ThrowsMessage<c10::ValueError>(HasSubstr("shared_inputs names those")));
  EXPECT_THAT([&] { (void)profile(model, inputs, ProfileOptions().shared_inputs({2})); },
              ThrowsMessage<c10::ValueError>(HasSubstr("shared_inputs names number 2")));
}

TEST(SharedInputs, AreCounted) {
  const std::vector<LayerWork> work = flops(masked_model(), inputs_on(c10::kCPU), kMask);
  ASSERT_THAT(work, SizeIs(3));
  const double product = 2 * kRows * kWidth * kWidth;
  EXPECT_GE(work[0].forward.flops, product);
  EXPECT_LT(work[0].forward.flops, 1.1 * product);  // the product, the bias and the mask
  const Profile nominal =
      profile_on_meta(masked_model_on_meta(), inputs_on(c10::kMeta), NominalDevice(), kMask);
  EXPECT_EQ(nominal.batch_rows, kRows);
  EXPECT_GT(nominal.layers.at(0).forward, 0);
}

// Four micro-batches share one mask, so a plan must count the mask once and not four times.
TEST(SharedInputs, TakeMemoryOnceInAPlan) {
  const auto options = MemoryPlanOptions({1, 2}).chunks(4).shared_inputs(kMask);
  const MemoryPlan plan =
      memory_plan(masked_model_on_meta(), inputs_on(c10::kMeta), {}, sum, options);
  EXPECT_EQ(plan.devices.at(0).peak.of(MemoryUse::kData), (kRows + 1) * kWidth * kBytes);
  EXPECT_THAT(
      [&] {
        (void)memory_plan(masked_model_on_meta(), inputs_on(c10::kMeta), {}, sum,
                          MemoryPlanOptions({1, 2}).chunks(4));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("shared_inputs names those")));
}

TEST(SharedInputs, AreInWhatFits) {
  const Fit found = fit(training(c10::kMeta), {int64_t{1} << 30, int64_t{1} << 30});
  EXPECT_TRUE(found.fits) << found.limit;
  EXPECT_GT(found.chunks, 0);
}

// A real pipeline must be able to run the plan.
TEST(SharedInputs, AreInAPlanThatRuns) {
  for (const bool measured : {false, true}) {
    const auto options = PlanOptions(2)
                             .make(masked_model)
                             .loss(sum)
                             .shared_inputs(kMask)
                             .chunks({4})
                             .budget(100'000)
                             .timeout(1e-3);
    const nn::Sequential model = masked_model();
    const PlanReport report = measured
                                  ? plan(model, inputs_on(c10::kCPU), options)
                                  : plan(masked_model_on_meta(), inputs_on(c10::kMeta), options);
    EXPECT_THAT(report.proof.problems, IsEmpty());
    EXPECT_TRUE(report.memory_planned);
    const std::vector<c10::Device> devices(2, c10::kCPU);
    GPipe pipe(model, pipe_options(report.plan, devices));
    pipe->step(inputs_on(c10::kCPU), {}, sum);
    for (const Tensor& parameter : pipe->parameters()) EXPECT_TRUE(parameter.grad().defined());
  }
}

}  // namespace
}  // namespace gpipe::balance
