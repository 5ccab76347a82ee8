#include "models/testing/pipelines.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <random>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/seed.h"
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
  // The plain model must have as many threads as a stage: another number sums in another order
  // (docs/guide/17-same-training.md).
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

void expect_every_table_equals_plain_model(const std::function<torch::nn::Sequential()>& make,
                                           const Tensors& inputs, const at::Tensor& target,
                                           const MakeLoss& loss) {
  using gpipe::testing::BackwardOrder;
  constexpr int64_t kChunks = 4;
  std::mt19937_64 random = gpipe::testing::test_random();
  const auto seeded = [&make] {
    torch::manual_seed(1);
    return make();
  };
  const int64_t threads = at::get_num_threads();
  const auto layers = static_cast<int64_t>(seeded()->size());
  std::vector<std::vector<int64_t>> balances = {{layers}, std::vector<int64_t>(layers, 1)};
  for (int64_t first = 1; first < layers; ++first) balances.push_back({first, layers - first});
  balances.push_back({1, layers - 2, 1});
  balances.push_back({2, 1, layers - 3});

  // The result of the plain model for each order in which gradients are added up.
  StepResult expected[2];
  Tensors expected_gradients[2];
  for (const BackwardOrder order : {BackwardOrder::kAscending, BackwardOrder::kDescending}) {
    const auto which = static_cast<int>(order);
    const torch::nn::Sequential model = seeded();
    torch::manual_seed(5);
    expected[which] =
        gpipe::testing::PlainModel(model, kChunks).step(inputs, {target}, loss(model), order);
    expected_gradients[which] = gradients(model);
  }
  for (const std::vector<int64_t>& balance : balances) {
    const auto stages = static_cast<int64_t>(balance.size());
    for (const Checkpoint mode :
         {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
      const auto rows = inputs.at(0).size(0), size = (rows + kChunks - 1) / kChunks;
      const Schedule tables[] = {
          Schedule::gpipe(stages, (rows + size - 1) / size),
          Schedule::one_f_one_b(stages, (rows + size - 1) / size),
          gpipe::testing::random_schedule(stages, (rows + size - 1) / size,
                                          gpipe::testing::MicroBatchOrder::kAscending, random)};
      for (const Schedule& table : tables) {
        SCOPED_TRACE("balance " + ::testing::PrintToString(balance) + ", " + to_text(mode) + "\n" +
                     table.to_text());
        const auto order =
            &table == &tables[0] ? BackwardOrder::kDescending : BackwardOrder::kAscending;
        const auto which = static_cast<int>(order);
        const torch::nn::Sequential model = seeded();
        GPipe pipe(model, GPipeOptions(balance)
                              .devices(std::vector<c10::Device>(balance.size(), c10::kCPU))
                              .chunks(kChunks)
                              .checkpoint(mode)
                              .cpu_threads_per_stage(threads));
        torch::manual_seed(5);
        const StepResult result = pipe->step(inputs, {target}, loss(model),
                                             StepOptions().schedule(table).keep_outputs(true));
        EXPECT_EQ(result.loss, expected[which].loss);
        EXPECT_THAT(result.outputs, EqualsBitwise(expected[which].outputs));
        EXPECT_THAT(gradients(model), EqualsBitwise(expected_gradients[which]));
      }
    }
  }
}

}  // namespace gpipe::models::testing
