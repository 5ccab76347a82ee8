// Fingerprint: a sample of a tensor's values, to tell whether a recompute gave the same values.
#ifndef GPIPE_INTERNAL_FINGERPRINT_H_
#define GPIPE_INTERNAL_FINGERPRINT_H_

#include <ATen/core/Tensor.h>

namespace gpipe::internal {

// It is empty, and matches everything, unless the tensor is dense, floating-point and not empty. On
// the CPU only float and double are sampled; other dtypes match everything.
class Fingerprint {
 public:
  static Fingerprint of(const at::Tensor& tensor);

  // What is known at once: on the CPU whether the values match, elsewhere whether there are as
  // many. Values that are not finite match everything.
  bool matches(const Fingerprint& other) const;

  // Accelerators: whether the values differ, as a tensor on the device, without waiting for it.
  // Undefined if either sample is empty or they are on different devices.
  at::Tensor differs(const Fingerprint& other) const;

 private:
  double sum_ = 0;  // of some of the values, weighted
  double magnitude_ = 0;
  at::Tensor sample_;  // accelerators: the values themselves
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_FINGERPRINT_H_
