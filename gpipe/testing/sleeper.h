// Sleeper: a layer that takes a given time and uses no core meanwhile.
#ifndef GPIPE_TESTING_SLEEPER_H_
#define GPIPE_TESTING_SLEEPER_H_

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <thread>

#include "gpipe/testing/function_layer.h"

namespace gpipe::testing {

using Seconds = std::chrono::duration<double>;

// A layer that sleeps for these times in its forward and in its backward. Its output equals its
// input.
inline std::shared_ptr<FunctionImpl<at::Tensor, at::Tensor>> sleeper(Seconds forward,
                                                                     Seconds backward = {}) {
  return layer<at::Tensor, at::Tensor>([=](const at::Tensor& x) {
    at::Tensor y = x * 1;
    if (backward.count() > 0 && y.requires_grad()) {
      y.register_hook([=](const at::Tensor&) { std::this_thread::sleep_for(backward); });
    }
    std::this_thread::sleep_for(forward);
    return y;
  });
}

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_SLEEPER_H_
