// FunctionLayer: a layer, for tests, that calls a function.
#ifndef GPIPE_TESTING_FUNCTION_LAYER_H_
#define GPIPE_TESTING_FUNCTION_LAYER_H_

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>

namespace gpipe::testing {

template <typename In, typename Out>
struct FunctionImpl : torch::nn::Module {
  explicit FunctionImpl(std::function<Out(In)> f) : f(std::move(f)) {}
  Out forward(In x) { return f(std::move(x)); }
  std::function<Out(In)> f;
};

template <typename In, typename Out>
std::shared_ptr<FunctionImpl<In, Out>> layer(std::function<Out(In)> f) {
  return std::make_shared<FunctionImpl<In, Out>>(std::move(f));
}

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_FUNCTION_LAYER_H_
