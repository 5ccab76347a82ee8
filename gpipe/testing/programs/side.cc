#include "gpipe/testing/programs/side.h"

#include <ATen/Context.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cfenv>
#include <optional>
#include <set>
#include <utility>

#include "gpipe/testing/device.h"

namespace gpipe::testing::programs {
namespace {

using at::Tensor;

// The numbers are drawn on the CPU and then copied to the device, so that they are the same for all
// devices.
Given make_input(const Program& program, const Input& input, c10::Device where) {
  std::vector<int64_t> shape = input.shape;
  shape.insert(shape.begin(), program.rows);
  if (input.integer) {
    Tensor tensor = at::randint(0, 7, shape, at::kLong).to(where);
    return {tensor, tensor, 0};
  }
  switch (input.layout) {
    case Layout::kContiguous:
      break;
    case Layout::kOffset:
      shape[0] += 3;
      break;
    case Layout::kEverySecondRow:
      shape[0] *= 2;
      break;
    case Layout::kTransposed:
      std::swap(shape.front(), shape.back());
      break;
    case Layout::kExpanded:
      shape[0] = 1;
  }
  Given given;
  given.leaf = at::randn(shape, program.in_double ? at::kDouble : at::kFloat).to(where);
  given.leaf.requires_grad_(input.requires_grad);
  switch (input.layout) {
    case Layout::kContiguous:
      given.tensor = given.leaf;
      break;
    case Layout::kOffset:
      given.tensor = given.leaf.narrow(0, 2, program.rows);
      break;
    case Layout::kEverySecondRow:
      given.tensor = given.leaf.slice(0, 0, std::nullopt, 2);
      break;
    case Layout::kTransposed:
      given.tensor = given.leaf.transpose(0, -1);
      break;
    case Layout::kExpanded: {
      shape[0] = program.rows;
      given.tensor = given.leaf.expand(shape);
    }
  }
  return given;
}

}  // namespace

bool spreads(const Program& program) { return program.seed % 2 == 1; }

Side make_side(const Program& program, bool copies_skips) {
  Side side;
  side.workshop.copies_skips = copies_skips;
  torch::manual_seed(program.seed);
  side.workshop.names_tied = spreads(program);
  side.model = torch::nn::Sequential();
  for (const Layer& layer : program.layers) side.model->push_back(layer.make(side.workshop));
  if (program.in_double) side.model->to(at::kDouble);
  side.model->train(program.train);
  return side;
}

void make_optimizer(const Program& program, const std::vector<Tensor>& parameters, Side& side) {
  std::set<const c10::TensorImpl*> seen;
  for (const Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) side.parameters.push_back(parameter);
  }
  if (side.parameters.empty()) return;
  switch (program.optimizer) {
    case Optimizer::kNone:
      return;
    case Optimizer::kMomentum:
      side.optimizer = std::make_unique<torch::optim::SGD>(
          side.parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
      return;
    case Optimizer::kAdam:
      side.optimizer =
          std::make_unique<torch::optim::Adam>(side.parameters, torch::optim::AdamOptions(0.01));
      return;
    case Optimizer::kAdamW:
      side.optimizer =
          std::make_unique<torch::optim::AdamW>(side.parameters, torch::optim::AdamWOptions(0.01));
  }
}

Tensors Batch::tensors() const {
  Tensors result;
  for (const Given& given : inputs) result.push_back(given.tensor);
  return result;
}

Batch make_batch(const Program& program, int64_t call, c10::Device first, c10::Device last) {
  torch::manual_seed(program.seed * 1000 + static_cast<uint64_t>(call));
  Batch batch;
  for (const Input& input : program.inputs) {
    batch.inputs.push_back(make_input(program, input, first));
    batch.inputs.back().version = batch.inputs.back().leaf._version();
  }
  if (program.loss == Loss::kCrossEntropy) {
    batch.target = at::randint(0, 6, {program.rows}, at::kLong).to(last);
  } else {
    batch.target = at::randn({program.rows}, program.in_double ? at::kDouble : at::kFloat).to(last);
    batch.target.requires_grad_(program.target_requires_grad);
  }
  return batch;
}

LossFn make_loss(const Program& program) {
  namespace F = torch::nn::functional;
  return [kind = program.loss](const Tensors& outputs, const Tensors& targets) {
    const Tensor output = outputs[0].flatten(1);
    Tensor target = targets[0];
    Tensor loss;
    if (kind == Loss::kCrossEntropy) {
      loss = F::cross_entropy(output, target.remainder(output.size(1)));
    } else {
      target = target.unsqueeze(1) * at::linspace(0.5, 1.5, output.size(1), target.options());
      loss = kind == Loss::kMse        ? F::mse_loss(output, target)
             : kind == Loss::kSmoothL1 ? F::smooth_l1_loss(output, target)
                                       : (output * target).mean();
    }
    for (size_t k = 1; k < outputs.size(); ++k) {
      if (outputs[k].defined() && outputs[k].is_floating_point()) {
        loss = loss + outputs[k].sin().mean() * 0.1;
      }
    }
    return loss;
  };
}

uint64_t call_seed(const Program& program, int64_t call) {
  return program.seed * 7919 + static_cast<uint64_t>(call);
}

FloatSettings::FloatSettings(const Program& program) {
  if (for_gpus()) return;
  if (program.rounding != Rounding::kNearest) {
    std::fesetround(program.rounding == Rounding::kUpward ? FE_UPWARD : FE_TOWARDZERO);
  }
  if (program.flush_denormals) at::globalContext().setFlushDenormal(true);
}

FloatSettings::~FloatSettings() {
  std::fesetround(FE_TONEAREST);
  at::globalContext().setFlushDenormal(false);
}

StepResult run_plain(const Program& program, PlainModel& plain, const Batch& batch,
                     const LossFn& loss) {
  const Tensors inputs = batch.tensors();
  switch (program.entry) {
    case Entry::kForward:
      return plain.forward_backward(inputs, {batch.target}, loss,
                                    program.autocast ? std::optional(at::kBFloat16) : std::nullopt);
    case Entry::kStep:
    case Entry::kStepTable:
      return plain.step(inputs, {batch.target}, loss, BackwardOrder::kAscending);
    case Entry::kStepGPipe:
      return plain.step(inputs, {batch.target}, loss, BackwardOrder::kDescending);
    case Entry::kNoGrad: {
      c10::NoGradGuard no_grad;
      return {0, plain.forward(inputs)};
    }
    case Entry::kInference:
      break;
  }
  c10::InferenceMode inference;
  return {0, plain.forward(inputs)};
}

void end_call(const Program& program, int64_t call, Side& side) {
  if (program.forward_only()) return;
  const bool skip = program.zero_grad == ZeroGrad::kEverySecondCall && call % 2 == 0;
  if (side.optimizer && !skip) side.optimizer->step();
  if (skip) return;
  for (const Tensor& parameter : side.parameters) {
    Tensor& gradient = const_cast<Tensor&>(parameter).mutable_grad();
    if (program.zero_grad != ZeroGrad::kZero) {
      gradient.reset();
    } else if (gradient.defined()) {
      gradient.detach_();
      gradient.zero_();
    }
  }
}

}  // namespace gpipe::testing::programs
