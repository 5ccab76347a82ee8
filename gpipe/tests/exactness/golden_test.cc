// Compares the models' training steps through a pipeline with reference numbers of the Python
// original for the same models, balances, chunks and modes.
#include "models/testing/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "models/amoebanetd.h"
#include "models/resnet.h"
#include "models/unet.h"

namespace gpipe {
namespace {

using testing::EqualsBitwise;

namespace golden = models::testing;

torch::nn::Sequential build(const golden::PipelineRun& run) {
  torch::nn::Sequential model = [&] {
    if (run.label == "resnet_1111_nc10_64x64") {
      return models::resnet(models::ResNetOptions({1, 1, 1, 1}).num_classes(10));
    }
    if (run.label == "unet_d2_n2_c8_16x16") {
      return models::unet(models::UNetOptions().depth(2).num_convs(2).base_channels(8));
    }
    if (run.label == "amoebanetd_L3_F16_nc10_224") {
      return models::amoebanetd(
          models::AmoebaNetDOptions().num_classes(10).num_layers(3).num_filters(16));
    }
    throw std::runtime_error("no such model: " + run.label);
  }();
  model->to(at::kDouble);
  golden::fill(run.fill, *model);
  golden::turn_dropout_off(*model);
  return model;
}

Checkpoint mode_of(const std::string& name) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    if (name == to_text(mode)) return mode;
  }
  throw std::runtime_error("no such mode: " + name);
}

// Returns the run of the original whose buffers are the reference. The original updates running
// statistics again in every recompute. This library does not, so in every mode its statistics must
// equal those of the original's run with "never". Returns nullptr if there is no such run.
const golden::PipelineRun* reference_for_buffers(const golden::PipelineRun& run) {
  for (const golden::PipelineRun& other : golden::golden_pipeline_runs()) {
    if (other.label == run.label && other.checkpoint == "never" && !other.deferred_batch_norm) {
      return &other;
    }
  }
  return nullptr;
}

struct Outcome {
  at::Tensor output;
  double loss;
};

Outcome train(GPipe& pipe, const golden::PipelineRun& run, bool step) {
  const at::Tensor input = golden::golden_input(run.input_shape);
  if (!step) {
    const at::Tensor output = pipe->forward(input);
    const at::Tensor loss = golden::golden_loss(run.loss, output);
    loss.backward();
    return {output.detach(), loss.item<double>()};
  }
  const at::Tensor target = golden::golden_target(run.loss, run.train.shape);
  const StepResult result = pipe->step(
      {input}, {target},
      [&](const Tensors& outputs, const Tensors& targets) {
        return golden::golden_loss(run.loss, outputs[0], targets[0]);
      },
      StepOptions().keep_outputs(true));
  return {result.outputs[0], result.loss};
}

class GoldenPipeline : public ::testing::TestWithParam<std::tuple<size_t, bool>> {};

TEST_P(GoldenPipeline, TrainsLikeTheOriginal) {
  const auto [which, step] = GetParam();
  const golden::PipelineRun& run = golden::golden_pipeline_runs().at(which);
  auto model = build(run);
  GPipe pipe(model, GPipeOptions(run.balance)
                        .devices({run.balance.size(), c10::Device(c10::kCPU)})
                        .chunks(run.chunks)
                        .checkpoint(mode_of(run.checkpoint))
                        .deferred_batch_norm(run.deferred_batch_norm));
  const auto [output, loss] = train(pipe, run, step);
  EXPECT_EQ(golden::difference(golden::record(output), run.train, run.tolerance.train), "");
  EXPECT_EQ(golden::difference(loss, run.train_loss, run.tolerance.train), "");
  EXPECT_EQ(
      golden::difference(golden::record_gradients(*pipe), run.gradients, run.tolerance.gradients),
      "");

  pipe->eval();
  torch::NoGradGuard no_grad;
  const golden::Record eval_after =
      golden::record(pipe->forward(golden::golden_input(run.input_shape)));
  const auto buffers = golden::record_buffers(*pipe);
  ASSERT_EQ(buffers.has_value(), run.buffers.has_value());
  if (!buffers) {
    EXPECT_EQ(golden::difference(eval_after, run.eval_after, run.tolerance.train), "");
  } else if (run.deferred_batch_norm) {
    // The original stores the biased variance. This library stores the unbiased one, as a plain
    // batch norm does. So variances, and what is computed from them, differ on purpose. Means and
    // counts do not.
    const double tolerance = run.tolerance.train;
    EXPECT_EQ(golden::difference(buffers->mean_sum, run.buffers->mean_sum, tolerance), "");
    EXPECT_EQ(golden::difference(buffers->mean_abs_sum, run.buffers->mean_abs_sum, tolerance), "");
    EXPECT_EQ(golden::difference(buffers->first_mean, run.buffers->first_mean, tolerance), "");
    EXPECT_EQ(buffers->batches, run.buffers->batches);
    EXPECT_GT(buffers->var_sum, run.buffers->var_sum);
  } else if (const golden::PipelineRun* never = reference_for_buffers(run)) {
    EXPECT_EQ(golden::difference(*buffers, *never->buffers, run.tolerance.train), "");
    EXPECT_EQ(golden::difference(eval_after, never->eval_after, run.tolerance.train), "");
  } else {
    // If no run with "never" can be compared with, the plain model is, micro-batch by micro-batch.
    torch::GradMode::set_enabled(true);
    auto plain = build(run);
    for (const auto& part :
         golden::golden_input(run.input_shape).split_with_sizes(run.micro_batch_sizes)) {
      plain->forward(part);
    }
    const auto expected = plain->named_buffers();
    for (const auto& buffer : pipe->named_buffers()) {
      EXPECT_THAT(expected[buffer.key()], EqualsBitwise(buffer.value())) << buffer.key();
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<GoldenPipeline::ParamType>& info) {
  const auto& run = golden::golden_pipeline_runs()[std::get<0>(info.param)];
  return run.label + "_" + run.checkpoint + (run.deferred_batch_norm ? "_deferred" : "") +
         (std::get<1>(info.param) ? "_step" : "_forward");
}

INSTANTIATE_TEST_SUITE_P(All, GoldenPipeline,
                         ::testing::Combine(::testing::Range(size_t{0},
                                                             golden::golden_pipeline_runs().size()),
                                            ::testing::Bool()),
                         case_name);

}  // namespace
}  // namespace gpipe
