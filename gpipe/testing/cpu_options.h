// CPU options: options and a loss for tests of pipelines. All stages are on the CPU, and the loss
// is the mean squared error.
#ifndef GPIPE_TESTING_CPU_OPTIONS_H_
#define GPIPE_TESTING_CPU_OPTIONS_H_

#include <ATen/ops/mse_loss.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/options.h"

namespace gpipe::testing {

// A list with the CPU as many times as `count` says.
inline std::vector<c10::Device> cpus(size_t count) { return {count, c10::Device(c10::kCPU)}; }

inline GPipeOptions cpu_options(std::vector<int64_t> balance) {
  const size_t partitions = balance.size();
  return GPipeOptions(std::move(balance)).devices(cpus(partitions));
}

inline at::Tensor square_loss(const Tensors& outputs, const Tensors& targets) {
  return at::mse_loss(outputs.at(0), targets.at(0));
}

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_CPU_OPTIONS_H_
