#include "gpipe/internal/fingerprint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace gpipe::internal {
namespace {

constexpr int64_t kSamples = 256;

// Much more than another order of sums changes, and little enough to notice other values.
constexpr double kTolerance = 1e-4;
constexpr double kToleranceOfHalfs = 1e-2;

int64_t step_of(const at::Tensor& tensor) {
  return std::max<int64_t>(1, tensor.numel() / kSamples);
}

struct Sums {
  double sum = 0;
  double magnitude = 0;
};

template <typename T>
Sums sums_of(const at::Tensor& tensor) {
  const T* data = tensor.const_data_ptr<T>();
  const int64_t count = tensor.numel();
  const int64_t step = step_of(tensor);
  Sums result;
  double weight = 1;
  for (int64_t k = 0; k < count; k += step) {
    const double value = static_cast<double>(data[k]);
    result.sum += weight * value;
    result.magnitude += std::fabs(weight * value);
    weight = weight < 2 ? weight + 0.125 : 1;  // so that swapped values are noticed
  }
  return result;
}

}  // namespace

Fingerprint Fingerprint::of(const at::Tensor& tensor) {
  Fingerprint result;
  if (!tensor.defined() || tensor.layout() != c10::kStrided || !tensor.is_floating_point() ||
      tensor.numel() == 0 || tensor.is_meta() || !tensor.is_non_overlapping_and_dense()) {
    return result;
  }
  if (!tensor.is_cpu()) {
    c10::NoGradGuard no_grad;
    const int64_t step = step_of(tensor);
    result.sample_ =
        at::as_strided(tensor.detach(), {(tensor.numel() + step - 1) / step}, {step}).clone();
    return result;
  }
  Sums sums;
  if (tensor.scalar_type() == at::kFloat) sums = sums_of<float>(tensor);
  if (tensor.scalar_type() == at::kDouble) sums = sums_of<double>(tensor);
  result.sum_ = sums.sum;
  result.magnitude_ = sums.magnitude;
  return result;
}

bool Fingerprint::matches(const Fingerprint& other) const {
  if (sample_.defined() && other.sample_.defined() && sample_.sizes() != other.sample_.sizes()) {
    return false;
  }
  if (!std::isfinite(magnitude_) || !std::isfinite(other.magnitude_)) return true;
  return std::fabs(sum_ - other.sum_) <= kTolerance * std::max(magnitude_, other.magnitude_);
}

at::Tensor Fingerprint::differs(const Fingerprint& other) const {
  if (!sample_.defined() || !other.sample_.defined() ||
      sample_.device() != other.sample_.device()) {
    return {};
  }
  TORCH_INTERNAL_ASSERT(sample_.sizes() == other.sample_.sizes(), "ask matches() first");
  c10::NoGradGuard no_grad;
  const bool half = at::elementSize(sample_.scalar_type()) < 4;
  const at::Tensor mine = sample_.to(at::kFloat);
  const at::Tensor theirs = other.sample_.to(at::kFloat);
  // False if a difference or a value is NaN.
  return (mine - theirs).abs().max() > theirs.abs().max() * (half ? kToleranceOfHalfs : kTolerance);
}

}  // namespace gpipe::internal
