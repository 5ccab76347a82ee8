// Tensors: functions that show tensors of fake devices to kernels and to the race detector.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_TENSORS_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>

#include "gpipe/testing/fake_accelerator/race_detector.h"

namespace gpipe::testing::fake {

// Whether the tensor is on a fake device; false for an undefined tensor.
bool is_fake(const at::Tensor& tensor);

Access access_of(const at::Tensor& tensor, bool write);

// A CPU tensor over the same memory. It does not keep the memory alive, because a kernel in flight
// owns nothing, as on a GPU. Requirements: a defined tensor with strides.
at::Tensor alias_on_cpu(const at::Tensor& tensor);

// Returns `value` with each tensor in it, defined or not, replaced by function(tensor).
c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& function);

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_TENSORS_H_
