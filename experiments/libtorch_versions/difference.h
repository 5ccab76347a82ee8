// Difference: how far two tensors that should be the same are apart.
#ifndef GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_DIFFERENCE_H_
#define GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_DIFFERENCE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace gpipe::experiments {

// The difference of two tensors, or of several pairs of tensors after add().
struct Difference {
  int64_t elements = 0;  // how many were compared
  int64_t differ =
      0;             // how many of them; two NaNs are equal, whatever their bits; 0 and -0 are not
  uint64_t ulp = 0;  // the largest distance, in units in the last place
  // The distance in proportion to the tensor: the largest |a - b|, in units in the last place of
  // the tensor's largest number.
  double of_largest = 0;
  std::string
      incomparable;  // why there is no distance, as for a NaN and a number; empty: there is one

  bool equal() const { return differ == 0 && incomparable.empty(); }
  void add(const Difference& other);
};

Difference difference_of(const at::Tensor& a, const at::Tensor& b);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_DIFFERENCE_H_
