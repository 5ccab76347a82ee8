// Finite: which values of a tensor are NaN or infinite, for StepOptions::check_finite.
#ifndef GPIPE_INTERNAL_TENSORS_FINITE_H_
#define GPIPE_INTERNAL_TENSORS_FINITE_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace gpipe::internal {

// A text like "3 of 64 values are nan, 1 is infinite"; empty if all are finite. Tensors without
// values (undefined, on meta, integers) count as finite. The host waits for the device.
std::string what_is_not_finite(const at::Tensor& tensor);

// Throws c10::ValueError that names `what`, unless all values are finite.
void check_finite(const at::Tensor& tensor, std::string_view what);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_FINITE_H_
