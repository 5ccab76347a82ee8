// Fingerprint: a sample of a tensor's values, to tell whether a recompute gave the same.
#ifndef GPIPE_INTERNAL_FINGERPRINT_H_
#define GPIPE_INTERNAL_FINGERPRINT_H_

#include <ATen/core/Tensor.h>

namespace gpipe::internal {

// Of what is dense, floating-point and not empty; of anything else it is empty and matches all.
class Fingerprint {
 public:
  static Fingerprint of(const at::Tensor& tensor);

  // What can be told at once: on the CPU whether the values do, elsewhere whether there are as
  // many. Values that are not finite match all.
  bool matches(const Fingerprint& other) const;

  // Accelerators: whether they differ, as a tensor there; undefined if both are empty. Nobody
  // waits.
  at::Tensor differs(const Fingerprint& other) const;

 private:
  double sum_ = 0;  // of some of the values, with weights
  double magnitude_ = 0;
  at::Tensor sample_;  // accelerators: the values themselves
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_FINGERPRINT_H_
