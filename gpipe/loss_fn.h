// LossFn: the caller's loss of a micro-batch, on lists of tensors or on one output and one target.
#ifndef GPIPE_LOSS_FN_H_
#define GPIPE_LOSS_FN_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe {

// The values that go between layers: one tensor or several.
using Tensors = std::vector<at::Tensor>;

// A function that gives a micro-batch's loss: a scalar, the mean over the samples it is given (see
// StepOptions::reduction and weight for other losses). The targets are those given to step() or
// evaluate(), cut into micro-batches; the list is empty if none were given.
//
// It converts implicitly from anything that can be called as
//   torch::Tensor(const Tensors& outputs, const Tensors& targets)
// or, for a model with one output and one target, as
//   torch::Tensor(torch::Tensor output, torch::Tensor target)
// A function that can be called both ways is called with the lists. A generic lambda (`const
// auto&`) whose body fits single tensors only does not compile: name the types.
//
// Thread-safety: as that of the function.
//
// Throws: calling it throws what the function throws, and c10::ValueError where the function takes
// single tensors and there is not one of each; std::bad_function_call if it is empty.
//
// Example:
//   LossFn loss_fn = [](torch::Tensor output, torch::Tensor target) {
//     return torch::mse_loss(output, target);
//   };
class LossFn {
  // A module (torch::nn::MSELoss) takes tensors. Asking its holder whether it can be called with
  // something else would not compile.
  template <typename F>
  using TakesLists =
      std::conjunction<std::negation<std::is_same<F, LossFn>>,
                       std::negation<torch::detail::is_module_holder<F>>,
                       std::is_invocable_r<at::Tensor, F&, const std::vector<at::Tensor>&,
                                           const std::vector<at::Tensor>&>>;
  template <typename F>
  using TakesTensors = std::conjunction<
      std::negation<std::is_same<F, LossFn>>, std::negation<TakesLists<F>>,
      std::disjunction<torch::detail::is_module_holder<F>,
                       std::is_invocable_r<at::Tensor, F&, at::Tensor, at::Tensor>>>;

 public:
  LossFn() = default;
  LossFn(std::nullptr_t) {}  // NOLINT: implicit

  template <typename F, std::enable_if_t<TakesLists<std::decay_t<F>>::value, int> = 0>
  LossFn(F&& function) : of_lists_(std::forward<F>(function)) {}  // NOLINT: implicit
  template <typename F, std::enable_if_t<TakesTensors<std::decay_t<F>>::value, int> = 0>
  LossFn(F&& function)  // NOLINT: implicit
      : of_lists_(on_lists(std::forward<F>(function))) {}

  at::Tensor operator()(const Tensors& outputs, const Tensors& targets) const {
    return of_lists_(outputs, targets);
  }

  explicit operator bool() const { return static_cast<bool>(of_lists_); }
  friend bool operator==(const LossFn& function, std::nullptr_t) { return !function; }
  friend bool operator!=(const LossFn& function, std::nullptr_t) {
    return static_cast<bool>(function);
  }

 private:
  using OfLists = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;
  using OfTensors = std::function<at::Tensor(at::Tensor output, at::Tensor target)>;

  // Returns an empty function for an empty one.
  static OfLists on_lists(OfTensors function);

  OfLists of_lists_;
};

}  // namespace gpipe

#endif  // GPIPE_LOSS_FN_H_
