#include "models/testing/checks.h"

#include <ATen/Functions.h>
#include <ATen/Utils.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>

#include "gpipe/testing/bitwise.h"
#include "skip/layout.h"

namespace gpipe::models::testing {
namespace {

using gpipe::testing::EqualsBitwise;

torch::nn::Sequential filled(const Build& build, const std::string& fill_kind) {
  torch::nn::Sequential model = build();
  model->to(at::kDouble);
  fill(fill_kind, *model);
  return model;
}

}  // namespace

void expect_golden(const std::string& label, const Build& build) {
  SCOPED_TRACE(label);
  const Case& expected = golden_case(label);
  const at::Tensor input = golden_input(expected.input_shape);

  const Counts counts = count(build());
  EXPECT_EQ(counts.parameters, expected.parameters);
  EXPECT_EQ(counts.layers, expected.layers);
  EXPECT_EQ(counts.parameter_tensors + counts.buffer_tensors, expected.state_entries);
  EXPECT_EQ(build()->named_parameters().keys(), expected.parameter_names);

  for (const auto& [kind, results] : expected.fills) {
    SCOPED_TRACE("fill " + kind);
    const Tolerance& tolerance = expected.tolerance;
    {
      auto model = filled(build, kind);
      model->eval();
      torch::NoGradGuard no_grad;
      const at::Tensor output = model->forward(input);
      EXPECT_EQ(difference(record(output), results.eval, tolerance.eval), "");
      EXPECT_EQ(difference(golden_loss(expected.loss, output).item<double>(), results.eval_loss,
                           tolerance.eval),
                "");
      if (!results.eval_trace.empty()) {
        EXPECT_EQ(difference(trace(model, input), results.eval_trace, tolerance.eval), "");
      }
    }
    if (results.train_dropout_seed_123) {
      auto model = filled(build, kind);
      torch::NoGradGuard no_grad;
      torch::manual_seed(123);
      EXPECT_EQ(difference(record(model->forward(input)), *results.train_dropout_seed_123,
                           tolerance.train),
                "");
    }
    {
      auto model = filled(build, kind);
      turn_dropout_off(*model);
      const at::Tensor output = model->forward(input);
      EXPECT_EQ(difference(record(output), results.train, tolerance.train), "");
      const at::Tensor loss = golden_loss(expected.loss, output);
      EXPECT_EQ(difference(loss.item<double>(), results.train_loss, tolerance.train), "");
      loss.backward();
      EXPECT_EQ(difference(record_gradients(*model), results.gradients, tolerance.gradients), "");
      const auto buffers = record_buffers(*model);
      ASSERT_EQ(buffers.has_value(), results.buffers.has_value());
      if (buffers) {
        EXPECT_EQ(difference(*buffers, *results.buffers, tolerance.train), "");
      }
    }
    if (!results.sgd_losses.empty()) {
      auto model = filled(build, kind);
      turn_dropout_off(*model);
      const auto losses =
          sgd_losses(model, input, expected.loss, static_cast<int64_t>(results.sgd_losses.size()));
      EXPECT_EQ(difference(losses, results.sgd_losses, tolerance.gradients), "");
    }
  }
}

void expect_golden_micro_batched(const std::string& label, const Build& build) {
  SCOPED_TRACE(label);
  const auto& runs = golden_pipeline_runs();
  // Takes the run without checkpoints. If there is none, the model has no batch norm, checkpointing
  // changes nothing, and any run of this label will do.
  auto run = std::find_if(runs.begin(), runs.end(), [&](const PipelineRun& run) {
    return run.label == label && run.checkpoint == "never";
  });
  if (run == runs.end()) {
    run = std::find_if(runs.begin(), runs.end(),
                       [&](const PipelineRun& run) { return run.label == label; });
  }
  ASSERT_NE(run, runs.end());
  const bool compare_buffers = run->checkpoint == "never" || !run->buffers;

  auto model = filled(build, run->fill);
  turn_dropout_off(*model);
  const at::Tensor input = golden_input(run->input_shape);
  std::vector<at::Tensor> outputs;
  for (const auto& part : input.split_with_sizes(run->micro_batch_sizes)) {
    outputs.push_back(model->forward(part));
  }
  const at::Tensor output = at::cat(outputs);
  EXPECT_EQ(difference(record(output), run->train, run->tolerance.train), "");
  const at::Tensor loss = golden_loss(run->loss, output);
  EXPECT_EQ(difference(loss.item<double>(), run->train_loss, run->tolerance.train), "");
  loss.backward();
  EXPECT_EQ(difference(record_gradients(*model), run->gradients, run->tolerance.gradients), "");
  if (!compare_buffers) return;
  const auto buffers = record_buffers(*model);
  ASSERT_EQ(buffers.has_value(), run->buffers.has_value());
  if (buffers) {
    EXPECT_EQ(difference(*buffers, *run->buffers, run->tolerance.train), "");
  }
  model->eval();
  torch::NoGradGuard no_grad;
  EXPECT_EQ(difference(record(model->forward(input)), run->eval_after, run->tolerance.train), "");
}

std::string skip_partitions(const torch::nn::Sequential& model,
                            const std::vector<int64_t>& balance) {
  auto edges = skip::Layout::inspect(model, balance).edges();
  std::sort(edges.begin(), edges.end(),
            [](const auto& a, const auto& b) { return a.source_layer > b.source_layer; });
  std::string text;
  for (const auto& edge : edges) {
    text += (text.empty() ? "" : " ") + std::to_string(edge.source_partition) + ">" +
            std::to_string(edge.target_partition);
  }
  return text;
}

void expect_clone_works(torch::nn::Sequential model, const at::Tensor& input) {
  model->eval();
  torch::nn::Sequential clone(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  ASSERT_EQ(clone->size(), model->size());
  // LibTorch's Sequential does not give a clone the names of its layers, so names are not compared.
  ASSERT_EQ(clone->parameters().size(), model->parameters().size());
  EXPECT_NE(clone->parameters().front().data_ptr(), model->parameters().front().data_ptr());
  torch::NoGradGuard no_grad;
  const at::Tensor output = model->forward(input);
  EXPECT_THAT(clone->forward(input), EqualsBitwise(output));
}

}  // namespace gpipe::models::testing
