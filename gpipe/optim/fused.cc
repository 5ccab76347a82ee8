#include "gpipe/optim/fused.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "gpipe/optim/fused_step.h"

namespace gpipe {
namespace {

using torch::optim::OptimizerParamGroup;

// Adam's and AdamW's options have the same names, so one function serves both.
template <typename Options, typename State, typename Kernel>
void step_of_adam(torch::optim::Optimizer& optimizer, const Kernel& kernel) {
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    const auto [beta1, beta2] = options.betas();
    internal::adam_step<State>(
        optimizer, group,
        {options.lr(), beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad()},
        kernel);
  }
}

// Throws c10::NotImplementedError if LibTorch's kernel for SGD on the CPU computes wrong values in
// this type. The kernel of 2.11 does so in bfloat16 from the 16th or 32nd element on, without an
// error.
void check_sgd_kernel(const at::Tensor& parameter) {
  if (!parameter.is_cpu() || !at::isReducedFloatingType(parameter.scalar_type())) return;
  const auto is_right = [](at::ScalarType type) {
    const at::Tensor gradient = at::arange(64, type);
    const at::Tensor value = at::zeros(64, type);
    at::_fused_sgd_({value}, {gradient}, {}, /*weight_decay=*/0, /*momentum=*/0, /*lr=*/1.0,
                    /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/true);
    return at::equal(value, -gradient);
  };
  static const bool bfloat16 = is_right(at::kBFloat16);
  static const bool half = is_right(at::kHalf);
  TORCH_CHECK_NOT_IMPLEMENTED(
      parameter.scalar_type() == at::kHalf ? half : bfloat16,
      "FusedSgd: the fused kernel of LibTorch ", TORCH_VERSION,
      " computes wrong values for parameters of the type ", parameter.scalar_type(),
      " on the CPU; use torch::optim::SGD, parameters in float32, or a newer LibTorch");
}

}  // namespace

torch::Tensor FusedAdamW::step(LossClosure closure) {
  const c10::NoGradGuard no_grad;
  torch::Tensor loss = internal::loss_of(closure);
  internal::check_for_kernels(*this, "FusedAdamW");
  step_of_adam<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
      *this, [](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  return loss;
}

torch::Tensor FusedAdam::step(LossClosure closure) {
  const c10::NoGradGuard no_grad;
  torch::Tensor loss = internal::loss_of(closure);
  internal::check_for_kernels(*this, "FusedAdam");
  step_of_adam<torch::optim::AdamOptions, torch::optim::AdamParamState>(
      *this, [](auto&&... arguments) { at::_fused_adam_(arguments...); });
  return loss;
}

torch::Tensor FusedSgd::step(LossClosure closure) {
  const c10::NoGradGuard no_grad;
  torch::Tensor loss = internal::loss_of(closure);
  internal::check_for_kernels(*this, "FusedSgd", /*is_fused=*/nullptr, check_sgd_kernel);
  for (const OptimizerParamGroup& group : param_groups()) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
    internal::FusedBatches batches;  // 0: the first step makes their momentum; 1: they have one
    for (const at::Tensor& parameter : internal::updated_in(group)) {
      const bool is_first =
          options.momentum() != 0 && state().count(parameter.unsafeGetTensorImpl()) == 0;
      internal::FusedLists& lists = internal::batch_of(batches, parameter, is_first ? 0 : 1);
      lists.parameters.push_back(parameter);
      lists.gradients.push_back(internal::in_layout_of(parameter, parameter.grad()));
      if (options.momentum() == 0) continue;
      at::Tensor momentum;
      if (is_first) {
        momentum = at::empty_like(parameter);  // the kernel fills it
      } else {
        auto& own =
            static_cast<torch::optim::SGDParamState&>(*state().at(parameter.unsafeGetTensorImpl()));
        own.momentum_buffer(internal::in_layout_of(parameter, own.momentum_buffer()));
        momentum = own.momentum_buffer();
      }
      lists.first.push_back(momentum);
    }
    for (auto& [key, lists] : batches) {
      at::_fused_sgd_(lists.parameters, lists.gradients, lists.first, options.weight_decay(),
                      options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                      /*maximize=*/false, /*is_first_step=*/std::get<2>(key) == 0);
      // The momentum buffers are kept only after the kernel has run, so a kernel that throws leaves
      // no buffers without values in the states.
      for (size_t k = 0; k < lists.first.size(); ++k) {
        const at::Tensor& momentum = lists.first[k];
        internal::state_of<torch::optim::SGDParamState>(
            *this, lists.parameters[k], [&](auto& made) { made.momentum_buffer(momentum); });
      }
    }
  }
  return loss;
}

torch::Tensor FusedAdagrad::step(LossClosure closure) {
  const c10::NoGradGuard no_grad;
  torch::Tensor loss = internal::loss_of(closure);
  internal::check_for_kernels(*this, "FusedAdagrad");
  for (const OptimizerParamGroup& group : param_groups()) {
    const auto& options = static_cast<const torch::optim::AdagradOptions&>(group.options());
    internal::FusedBatches batches;
    for (const at::Tensor& parameter : internal::updated_in(group)) {
      auto& own =
          internal::state_of<torch::optim::AdagradParamState>(*this, parameter, [&](auto& made) {
            made.sum(at::full_like(parameter, options.initial_accumulator_value()));
          });
      own.sum(internal::in_layout_of(parameter, own.sum()));
      internal::FusedLists& lists = internal::batch_of(batches, parameter, own.step() + 1);
      lists.parameters.push_back(parameter);
      lists.gradients.push_back(internal::in_layout_of(parameter, parameter.grad()));
      lists.first.push_back(own.sum());
    }
    for (auto& [key, lists] : batches) {
      internal::TensorList steps = internal::steps_of(lists, std::get<2>(key));
      at::_fused_adagrad_(lists.parameters, lists.gradients, lists.first, steps, options.lr(),
                          options.lr_decay(), options.weight_decay(), options.eps(),
                          /*maximize=*/false);
      internal::count_step<torch::optim::AdagradParamState>(*this, lists, std::get<2>(key));
    }
  }
  return loss;
}

}  // namespace gpipe
