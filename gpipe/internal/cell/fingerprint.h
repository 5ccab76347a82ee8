// Fingerprint: a sample of a tensor's values, to tell whether a recompute gave the same values.
#ifndef GPIPE_INTERNAL_CELL_FINGERPRINT_H_
#define GPIPE_INTERNAL_CELL_FINGERPRINT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gpipe::internal {

// A fingerprint is made of at most a few hundred values of the tensor, whatever its strides are;
// for a sparse tensor, of its values and (on the CPU) its indices. It is empty, and matches
// everything, for tensors that are not sampled: integers and quantized values, which require no
// gradient; float8_e8m0 and float4, whose neighbors are a factor apart; MKL-DNN's own layouts, and
// nested tensors with gaps.
class Fingerprint {
 public:
  static Fingerprint of(const at::Tensor& tensor);

  // The answer that needs no wait: on the CPU, whether the values match; elsewhere, whether both
  // have the same number of values. Values that are not finite match everything.
  bool matches(const Fingerprint& other) const;

  // Accelerators: whether the values differ, as a tensor on the device, without waiting for it.
  // Undefined if either sample is empty or they are on different devices.
  at::Tensor differs(const Fingerprint& other) const;

 private:
  // The fingerprint of a tensor that is not plain: a nested or a sparse one.
  static Fingerprint of_parts(const at::Tensor& tensor);

  int64_t count_ = -1;  // number of the tensor's values; -1: not sampled
  double sum_ = 0;      // weighted sum of some of the values
  double magnitude_ = 0;
  double rounding_ = 0;  // how far the sum moves if one of the values is rounded otherwise
  uint64_t places_ = 0;  // for a sparse tensor: hash of its indices
  at::Tensor sample_;    // accelerators: the values themselves
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_FINGERPRINT_H_
