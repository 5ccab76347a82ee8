#include "gpipe/internal/cell/fingerprint.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace gpipe::internal {
namespace {

constexpr int64_t kSamples = 256;

// A tolerance is much more than another order of summation changes, and small enough to notice
// other values.
constexpr double kTolerance = 1e-4;
constexpr double kToleranceOfHalfs = 1e-2;

// The places of the sampled values: offsets in elements from the tensor's first one.
struct Grid {
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
};

Grid grid_of(const at::Tensor& tensor) {
  Grid grid;
  if (tensor.is_non_overlapping_and_dense()) {
    // Samples the memory of the tensor in its own order. An odd step reaches all columns.
    const int64_t count = tensor.numel();
    const int64_t step = std::max<int64_t>(1, count / kSamples) | 1;
    grid.sizes.push_back((count + step - 1) / step);
    grid.strides.push_back(step);
    return grid;
  }
  c10::SmallVector<int64_t, 6> lengths;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    // An expanded dimension repeats each value, so one repetition is enough.
    lengths.push_back(tensor.stride(d) == 0 ? 1 : tensor.size(d));
  }
  c10::SmallVector<int64_t, 6> steps(lengths.size(), 1);
  grid.sizes = lengths;
  const auto count = [&grid] {
    int64_t product = 1;
    for (const int64_t size : grid.sizes) product *= size;
    return product;
  };
  while (count() > kSamples) {
    const size_t d = std::max_element(grid.sizes.begin(), grid.sizes.end()) - grid.sizes.begin();
    steps[d] = 2 * steps[d] + 1;
    grid.sizes[d] = (lengths[d] + steps[d] - 1) / steps[d];
  }
  for (size_t d = 0; d < lengths.size(); ++d) {
    grid.strides.push_back(tensor.stride(static_cast<int64_t>(d)) * steps[d]);
  }
  return grid;
}

// Calls visit(offset) for each place, along the last dimension first.
template <typename Visit>
void for_each_place(const Grid& grid, const Visit& visit) {
  const size_t last = grid.sizes.size() - 1;
  c10::SmallVector<int64_t, 6> index(grid.sizes.size(), 0);
  int64_t offset = 0;
  for (;;) {
    for (int64_t k = 0; k < grid.sizes[last]; ++k) visit(offset + k * grid.strides[last]);
    size_t d = last;
    for (; d > 0; --d) {
      offset += grid.strides[d - 1];
      if (++index[d - 1] < grid.sizes[d - 1]) break;
      offset -= grid.sizes[d - 1] * grid.strides[d - 1];
      index[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

struct Sums {
  double sum = 0;
  double magnitude = 0;
  double largest = 0;
  double weight = 1;

  void add(double value) {
    const double weighted = weight * value;
    sum += weighted;
    magnitude += std::fabs(weighted);
    largest = std::max(largest, std::fabs(weighted));
    weight = weight < 2 ? weight + 0.125 : 1;  // so that swapped values are noticed
  }
};

// The signs that lazy negation and conjugation give to the values in memory.
struct Signs {
  double real;
  double imaginary;
};

template <typename T>
void add(Sums& sums, T value, Signs signs) {
  sums.add(signs.real * static_cast<double>(value));
}
template <typename T>
void add(Sums& sums, c10::complex<T> value, Signs signs) {
  sums.add(signs.real * static_cast<double>(value.real()));
  sums.add(signs.imaginary * static_cast<double>(value.imag()));
}

template <typename T>
struct RealOf {
  using Type = T;
};
template <typename T>
struct RealOf<c10::complex<T>> {
  using Type = T;
};

// The largest relative difference between two neighbors of the type.
template <typename T>
double epsilon() {
  return static_cast<double>(std::numeric_limits<typename RealOf<T>::Type>::epsilon());
}

// Calls function(T()) with the tensor's type. Returns false for a type that is not sampled.
template <typename Function>
bool with_type(at::ScalarType type, const Function& function) {
  switch (type) {
#define GPIPE_CASE(T, name)  \
  case at::ScalarType::name: \
    function(T());           \
    return true;
    GPIPE_CASE(float, Float)
    GPIPE_CASE(double, Double)
    GPIPE_CASE(c10::Half, Half)
    GPIPE_CASE(c10::BFloat16, BFloat16)
    GPIPE_CASE(c10::complex<c10::Half>, ComplexHalf)
    GPIPE_CASE(c10::complex<float>, ComplexFloat)
    GPIPE_CASE(c10::complex<double>, ComplexDouble)
    GPIPE_CASE(c10::Float8_e4m3fn, Float8_e4m3fn)
    GPIPE_CASE(c10::Float8_e4m3fnuz, Float8_e4m3fnuz)
    GPIPE_CASE(c10::Float8_e5m2, Float8_e5m2)
    GPIPE_CASE(c10::Float8_e5m2fnuz, Float8_e5m2fnuz)
#undef GPIPE_CASE
    default:
      return false;
  }
}

double tolerance_of(at::ScalarType type) {
  double tolerance = 0;
  with_type(type, [&tolerance](auto zero) {
    const double gap = epsilon<decltype(zero)>();
    tolerance = gap < kTolerance ? kTolerance : std::max(kToleranceOfHalfs, gap);
  });
  return tolerance;
}

// A hash of some of a sparse tensor's indices.
template <typename T>
uint64_t hash_of(const at::Tensor& indices) {
  const T* const data = indices.const_data_ptr<T>();
  uint64_t hash = 0;
  for_each_place(grid_of(indices), [&](int64_t place) {
    hash = hash * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(data[place]) + 1;
  });
  return hash;
}

uint64_t hash_of(const at::Tensor& indices) {
  if (!indices.is_cpu() || indices.numel() == 0) return 0;
  return indices.scalar_type() == at::kInt ? hash_of<int32_t>(indices) : hash_of<int64_t>(indices);
}

}  // namespace

Fingerprint Fingerprint::of(const at::Tensor& tensor) {
  Fingerprint result;
  if (!tensor.defined() || tensor.is_meta()) return result;
  if (tensor.layout() != c10::kStrided || tensor.is_nested()) return of_parts(tensor);
  if (!with_type(tensor.scalar_type(), [](auto) {})) return result;
  result.count_ = tensor.numel();
  if (result.count_ == 0) return result;
  const Grid grid = grid_of(tensor);
  if (!tensor.is_cpu()) {
    c10::NoGradGuard no_grad;
    result.sample_ = at::as_strided(tensor.detach(), grid.sizes, grid.strides).clone();
    return result;
  }
  const double sign = tensor.is_neg() ? -1 : 1;
  const Signs signs{sign, tensor.is_conj() ? -sign : sign};
  with_type(tensor.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* const data = tensor.const_data_ptr<T>();
    if (data == nullptr) return;  // LibTorch has tensors of zeros without memory
    Sums sums;
    for_each_place(grid, [&](int64_t place) { add(sums, data[place], signs); });
    result.sum_ = sums.sum;
    result.magnitude_ = sums.magnitude;
    result.rounding_ = sums.largest * epsilon<T>();
  });
  return result;
}

Fingerprint Fingerprint::of_parts(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  Fingerprint result;
  if (tensor.is_nested()) {
    const auto* const nested = dynamic_cast<const at::native::NestedTensorImpl*>(impl);
    if (nested == nullptr || !at::native::nested_tensor_impl_is_contiguous(nested)) return result;
    c10::NoGradGuard no_grad;
    return of(nested->get_buffer().narrow(0, 0, tensor.numel()));
  }
  if (const auto* const sparse = dynamic_cast<const at::SparseTensorImpl*>(impl)) {
    result = of(sparse->values());
    result.places_ = hash_of(sparse->indices());
  } else if (auto* const rows = dynamic_cast<const at::SparseCsrTensorImpl*>(impl)) {
    result = of(rows->values());
    result.places_ = 31 * hash_of(rows->compressed_indices()) + hash_of(rows->plain_indices());
  }
  return result;
}

bool Fingerprint::matches(const Fingerprint& other) const {
  if (count_ < 0 || other.count_ < 0) return true;
  if (count_ != other.count_ || places_ != other.places_) return false;
  if (sample_.defined() && other.sample_.defined() && sample_.sizes() != other.sample_.sizes()) {
    return false;
  }
  if (!std::isfinite(magnitude_) || !std::isfinite(other.magnitude_)) return true;
  const double tolerance =
      kTolerance * std::max(magnitude_, other.magnitude_) + std::max(rounding_, other.rounding_);
  return std::fabs(sum_ - other.sum_) <= tolerance &&
         std::fabs(magnitude_ - other.magnitude_) <= tolerance;
}

at::Tensor Fingerprint::differs(const Fingerprint& other) const {
  if (!sample_.defined() || !other.sample_.defined() ||
      sample_.device() != other.sample_.device()) {
    return {};
  }
  TORCH_INTERNAL_ASSERT(sample_.sizes() == other.sample_.sizes(), "ask matches() first");
  c10::NoGradGuard no_grad;
  // The samples as float or complex float. abs() then gives real numbers.
  const auto as_floats = [](const at::Tensor& sample) {
    return sample.to(sample.is_complex() ? at::kComplexFloat : at::kFloat);
  };
  const at::Tensor mine = as_floats(sample_);
  const at::Tensor theirs = as_floats(other.sample_);
  const double tolerance =
      std::max(tolerance_of(sample_.scalar_type()), tolerance_of(other.sample_.scalar_type()));
  // The result is false if a difference or a value is NaN.
  return (mine - theirs).abs().max() > theirs.abs().max() * tolerance;
}

}  // namespace gpipe::internal
