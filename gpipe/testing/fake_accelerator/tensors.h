// Tensors: tensors of fake devices as kernels and the race detector see them.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_TENSORS_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>

#include "gpipe/testing/fake_accelerator/race_detector.h"

namespace gpipe::testing::fake {

// False for an undefined tensor.
bool is_fake(const at::Tensor& tensor);

Access access_of(const at::Tensor& tensor, bool write);

// The same memory as a CPU tensor. It does not keep the memory alive: as on a GPU, a kernel in
// flight owns nothing. Requirements: a defined tensor with strides.
at::Tensor alias_on_cpu(const at::Tensor& tensor);

// `value` with each tensor in it, defined or not, replaced by function(tensor).
c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& function);

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_TENSORS_H_
