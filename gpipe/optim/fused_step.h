// FusedLists: lists of tensors, checks and Adam's update, for optimizers over LibTorch's fused
// kernels.
#ifndef GPIPE_OPTIM_FUSED_STEP_H_
#define GPIPE_OPTIM_FUSED_STEP_H_

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe::internal {

using TensorList = std::vector<at::Tensor>;

// The arguments of one call of a kernel: tensors of one type, on one device, with one number of
// steps.
struct FusedLists {
  TensorList parameters;
  TensorList gradients;
  TensorList first, second, third;  // the states
};
using FusedBatches = std::map<std::tuple<std::string, at::ScalarType, int64_t>, FusedLists>;

FusedLists& batch_of(FusedBatches& batches, const at::Tensor& parameter, int64_t number);

// Returns `tensor`, or a copy of it with the type and the strides of `parameter`. The kernels go
// through memory in its own order, and ignore strides.
at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& tensor);

// Returns, for each parameter, one and the same tensor with the number of steps. The kernels only
// read it.
TensorList steps_of(const FusedLists& lists, int64_t steps);

// Throws c10::ValueError for a parameter with a gradient that the kernels do not take. `name`: the
// name of the optimizer. `is_fused`: whether the group is updated by such a kernel. `check_kernel`
// is called for each parameter with a gradient and elements, and throws if the kernel cannot be
// used.
void check_for_kernels(
    const torch::optim::Optimizer& optimizer, const char* name,
    const std::function<bool(const torch::optim::OptimizerParamGroup&)>& is_fused = nullptr,
    void (*check_kernel)(const at::Tensor& parameter) = nullptr);

// Calls the closure with gradients on, and returns its result, or an undefined tensor if there is
// no closure.
at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure);

// The parameter's state. If there is none, make(State&) makes it.
template <typename State, typename Make>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const Make& make) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) {
    auto made = std::make_unique<State>();
    make(*made);
    state = std::move(made);
  }
  return static_cast<State&>(*state);
}

// Sets the number of steps of the parameters' states. It is called after the kernel, so that a step
// that throws does not count.
template <typename State>
void count_step(torch::optim::Optimizer& optimizer, const FusedLists& lists, int64_t steps) {
  for (const at::Tensor& parameter : lists.parameters) {
    static_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl())).step(steps);
  }
}

// The group's parameters that have a gradient and elements.
TensorList updated_in(const torch::optim::OptimizerParamGroup& group);

// Whether states of this type have a `max_exp_avg_sq`, for `amsgrad`.
template <typename State, typename = void>
struct HasMax : std::false_type {};
template <typename State>
struct HasMax<State, std::void_t<decltype(std::declval<State&>().max_exp_avg_sq())>>
    : std::true_type {};

struct AdamNumbers {
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
  double eps;
  bool amsgrad;
};

// `kernel`: at::_fused_adam_ or at::_fused_adamw_. `State`: the type of Adam's or AdamW's states.
template <typename State, typename Kernel>
void adam_step(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
               const AdamNumbers& numbers, const Kernel& kernel) {
  FusedBatches batches;
  for (const at::Tensor& parameter : updated_in(group)) {
    auto& state = state_of<State>(optimizer, parameter, [&](State& made) {
      made.exp_avg(at::zeros_like(parameter));
      made.exp_avg_sq(at::zeros_like(parameter));
    });
    // States that were loaded may have other strides.
    state.exp_avg(in_layout_of(parameter, state.exp_avg()));
    state.exp_avg_sq(in_layout_of(parameter, state.exp_avg_sq()));
    FusedLists& lists = batch_of(batches, parameter, state.step() + 1);
    lists.parameters.push_back(parameter);
    lists.gradients.push_back(in_layout_of(parameter, parameter.grad()));
    lists.first.push_back(state.exp_avg());
    lists.second.push_back(state.exp_avg_sq());
    if constexpr (HasMax<State>::value) {
      if (!numbers.amsgrad) continue;
      const at::Tensor& most = state.max_exp_avg_sq();
      state.max_exp_avg_sq(most.defined() ? in_layout_of(parameter, most)
                                          : at::zeros_like(parameter));
      lists.third.push_back(state.max_exp_avg_sq());
    }
  }
  for (auto& [key, lists] : batches) {
    kernel(lists.parameters, lists.gradients, lists.first, lists.second, lists.third,
           steps_of(lists, std::get<2>(key)), numbers.lr, numbers.beta1, numbers.beta2,
           numbers.weight_decay, numbers.eps, numbers.amsgrad, /*maximize=*/false);
    count_step<State>(optimizer, lists, std::get<2>(key));
  }
}

}  // namespace gpipe::internal

#endif  // GPIPE_OPTIM_FUSED_STEP_H_
