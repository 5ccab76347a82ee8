// SeveralArguments: makes a module whose forward takes several tensors (x and a mask) a layer of a
// pipeline, and First, which ends such a list.
//
// The layers of a torch::nn::Sequential pass one value on. Several tensors are passed as a list.
#ifndef GPIPE_SEVERAL_ARGUMENTS_H_
#define GPIPE_SEVERAL_ARGUMENTS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe {

namespace internal {

inline std::vector<at::Tensor> results_of(at::Tensor result) { return {std::move(result)}; }
inline std::vector<at::Tensor> results_of(std::vector<at::Tensor> results) { return results; }
template <typename... T>
std::vector<at::Tensor> results_of(std::tuple<T...> results) {
  return std::apply([](auto&&... tensor) { return std::vector<at::Tensor>{std::move(tensor)...}; },
                    std::move(results));
}

}  // namespace internal

// `Impl` with a forward that takes its arguments as one list, (x, mask, ...), and returns a list:
// the results of Impl::forward replace the first elements, and the others pass on unchanged, to the
// next layer of this kind. The class derives from Impl, so parameters keep their keys.
//
// Requirements: Impl::forward is not overloaded and takes tensors; arguments of other types need
// defaults (FORWARD_HAS_DEFAULT_ARGS), which are used for missing ones. Each tensor has the
// batch as its dimension 0.
//
// Throws: forward throws c10::ValueError for a list that is too short; clone throws
// c10::NotImplementedError.
//
// Example:
//   struct BlockImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x, torch::Tensor mask);
//   };
//   torch::nn::Sequential model(gpipe::SeveralArguments<BlockImpl>(64),
//                               gpipe::SeveralArguments<BlockImpl>(64), gpipe::First());
//   pipe->step({x, mask}, {target}, loss_fn);
template <typename Impl>
class SeveralArgumentsImpl : public Impl {
 public:
  using Impl::Impl;

  std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs) {
    return call(&Impl::forward, std::move(inputs));
  }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& /*device*/ = std::nullopt) const override {
    C10_THROW_ERROR(NotImplementedError,
                    "a SeveralArguments layer cannot be cloned: clone() of the module within would "
                    "give a module of its own type. Make a new one");
  }

  // LibTorch's AnyModule asks whether this class's forward has default arguments. It has none:
  // Impl's defaults are for the arguments of Impl's own forward.
  bool _forward_has_default_args() override { return false; }

 private:
  // `Class`: Impl, or the base class of Impl that declares forward.
  template <typename Class, typename Result, typename... Arguments>
  std::vector<at::Tensor> call(Result (Class::*function)(Arguments...),
                               std::vector<at::Tensor> inputs) {
    constexpr size_t kArguments = sizeof...(Arguments);
    std::vector<torch::nn::AnyValue> arguments;
    for (size_t k = 0; k < inputs.size() && k < kArguments; ++k) arguments.emplace_back(inputs[k]);
    if (Impl::_forward_has_default_args() && arguments.size() < kArguments &&
        arguments.size() >= Impl::_forward_num_required_args()) {
      arguments = Impl::_forward_populate_default_args(std::move(arguments));
    }
    TORCH_CHECK_VALUE(arguments.size() == kArguments, this->name(), " takes ", kArguments,
                      " arguments, but was given a list of ", inputs.size(), " tensors");
    std::vector<at::Tensor> results =
        internal::results_of(invoke(function, arguments, std::index_sequence_for<Arguments...>()));
    if (results.size() < inputs.size()) {
      results.insert(results.end(),
                     std::make_move_iterator(inputs.begin() + static_cast<int64_t>(results.size())),
                     std::make_move_iterator(inputs.end()));
    }
    return results;
  }

  template <typename Class, typename Result, typename... Arguments, size_t... I>
  Result invoke(Result (Class::*function)(Arguments...),
                std::vector<torch::nn::AnyValue>& arguments,
                std::index_sequence<I...> /*positions*/) {
    return (this->*function)(arguments[I].template get<std::decay_t<Arguments>>()...);
  }
};

template <typename Impl>
using SeveralArguments = torch::nn::ModuleHolder<SeveralArgumentsImpl<Impl>>;

// Returns the first tensor of a list: the end of a chain of SeveralArguments. Throws
// c10::ValueError for an empty list.
class FirstImpl : public torch::nn::Module {
 public:
  at::Tensor forward(std::vector<at::Tensor> inputs) {
    TORCH_CHECK_VALUE(
        !inputs.empty(),
        "First was given an empty list; the layer before it must return at least one tensor");
    return std::move(inputs.front());
  }
};
TORCH_MODULE(First);

}  // namespace gpipe

#endif  // GPIPE_SEVERAL_ARGUMENTS_H_
