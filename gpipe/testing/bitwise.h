// EqualsBitwise: matchers for tensors that must be equal bit by bit, and not only nearly equal.
//
// A failure shows where the two first differ, both values in full, the distance in units in the
// last place (ulp), how many elements differ, and the largest difference.
//
// Example:
//   EXPECT_THAT(pipe->forward(x), EqualsBitwise(plain.forward({x})[0]));
//   EXPECT_THAT(result.outputs, EqualsBitwise(expected.outputs)) << "in round " << round;
#ifndef GPIPE_TESTING_BITWISE_H_
#define GPIPE_TESTING_BITWISE_H_

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace at {

// Makes GoogleTest print a tensor as "float[2, 3] on cpu", because it may have millions of values.
void PrintTo(const Tensor& tensor, std::ostream* out);

}  // namespace at

namespace gpipe::testing {

// Describes the difference. Empty if both tensors are undefined, or have the same type, sizes,
// device and bits: a NaN equals only the same NaN, and -0 is not 0. Strides are ignored. The
// tensors must be dense.
std::string bitwise_difference(const at::Tensor& expected, const at::Tensor& actual);
std::string bitwise_difference(const std::vector<at::Tensor>& expected,
                               const std::vector<at::Tensor>& actual);

template <typename Value>
class BitwiseMatcher {
 public:
  using is_gtest_matcher = void;

  explicit BitwiseMatcher(Value expected) : expected_(std::move(expected)) {}

  bool MatchAndExplain(const Value& actual, std::ostream* out) const {
    const std::string difference = bitwise_difference(expected_, actual);
    if (out != nullptr) *out << difference;
    return difference.empty();
  }
  void DescribeTo(std::ostream* out) const {
    *out << "bitwise equal to ";
    ::testing::internal::UniversalPrint(expected_, out);
  }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "not ";
    DescribeTo(out);
  }

 private:
  Value expected_;
};

inline BitwiseMatcher<at::Tensor> EqualsBitwise(at::Tensor expected) {
  return BitwiseMatcher<at::Tensor>(std::move(expected));
}

inline BitwiseMatcher<std::vector<at::Tensor>> EqualsBitwise(std::vector<at::Tensor> expected) {
  return BitwiseMatcher<std::vector<at::Tensor>>(std::move(expected));
}

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_BITWISE_H_
