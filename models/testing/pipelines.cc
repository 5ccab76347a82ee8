#include "models/testing/pipelines.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/plain_model.h"
#include "models/testing/golden.h"

namespace gpipe::models::testing {
namespace {

using gpipe::testing::EqualsBitwise;

at::Tensor loss(const Tensors& outputs, const Tensors& targets) {
  return at::cross_entropy_loss(outputs.at(0), targets.at(0));
}

Tensors gradients(const torch::nn::Sequential& model) {
  Tensors all;
  for (const auto& parameter : model->parameters()) all.push_back(parameter.grad());
  return all;
}

}  // namespace

std::vector<size_t> tensors_after(torch::nn::Sequential model, const at::Tensor& input) {
  model->eval();
  const torch::NoGradGuard no_grad;
  std::vector<size_t> counts;
  for (const TraceEntry& entry : trace(model, input)) counts.push_back(entry.abs_sums.size());
  return counts;
}

void expect_pipeline_equals_plain_model(const std::function<torch::nn::Sequential()>& make,
                                        const std::vector<int64_t>& balance,
                                        at::IntArrayRef input_shape) {
  SCOPED_TRACE("balance " + ::testing::PrintToString(balance));
  const auto seeded = [&make] {
    torch::manual_seed(1);
    return make();
  };
  // As many as the plain model has: another number sums in another order (docs/exactness.md).
  const int64_t threads = at::get_num_threads();
  const at::Tensor input = at::rand(input_shape);
  const at::Tensor target = at::arange(input_shape[0]);
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    SCOPED_TRACE(to_text(mode));
    const torch::nn::Sequential expected_model = seeded();
    const StepResult expected =
        gpipe::testing::PlainModel(expected_model, 2)
            .step({input}, {target}, loss, gpipe::testing::BackwardOrder::kAscending);
    const torch::nn::Sequential model = seeded();
    GPipe pipe(model, GPipeOptions(balance)
                          .devices(std::vector<c10::Device>(balance.size(), c10::kCPU))
                          .chunks(2)
                          .checkpoint(mode)
                          .cpu_threads_per_stage(threads));
    const StepResult result = pipe->step({input}, {target}, loss);
    EXPECT_EQ(result.loss, expected.loss);
    EXPECT_THAT(gradients(model), EqualsBitwise(gradients(expected_model)));
    EXPECT_THAT(model->buffers(), EqualsBitwise(expected_model->buffers()));
  }
}

}  // namespace gpipe::models::testing
