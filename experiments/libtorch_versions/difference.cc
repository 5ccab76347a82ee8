#include "experiments/libtorch_versions/difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpipe/testing/ulp.h"

namespace gpipe::experiments {
namespace {

std::string what_it_is(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), "[", absl::StrJoin(tensor.sizes(), ", "),
                      "]");
}

// The size of one unit in the last place, for a number of size `size` in this type.
double unit(double size, c10::ScalarType type) {
  const int bits = type == at::kDouble ? 52 : type == at::kFloat ? 23 : type == at::kHalf ? 10 : 7;
  return std::ldexp(1, std::ilogb(size) - bits);
}

}  // namespace

void Difference::add(const Difference& other) {
  elements += other.elements;
  differ += other.differ;
  ulp = std::max(ulp, other.ulp);
  of_largest = std::max(of_largest, other.of_largest);
  if (incomparable.empty()) incomparable = other.incomparable;
}

Difference difference_of(const at::Tensor& a, const at::Tensor& b) {
  Difference difference;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) {
    difference.incomparable = absl::StrCat(what_it_is(a), " and ", what_it_is(b));
    return difference;
  }
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  difference.elements = left.numel();
  const size_t size = left.element_size();
  const auto* x = static_cast<const char*>(left.const_data_ptr());
  const auto* y = static_cast<const char*>(right.const_data_ptr());
  if (left.numel() == 0 || std::memcmp(x, y, left.numel() * size) == 0) return difference;

  const bool floating = left.is_floating_point();
  const at::Tensor left_values = floating ? left.to(at::kDouble) : left;
  const at::Tensor right_values = floating ? right.to(at::kDouble) : right;
  double farthest = 0;
  double largest = 0;
  for (int64_t k = 0; k < left.numel(); ++k) {
    const double p = floating ? left_values.const_data_ptr<double>()[k] : 0;
    const double q = floating ? right_values.const_data_ptr<double>()[k] : 0;
    if (std::isfinite(p)) largest = std::max(largest, std::abs(p));
    if (std::isfinite(q)) largest = std::max(largest, std::abs(q));
    const char* here = x + k * size;
    const char* there = y + k * size;
    if (std::memcmp(here, there, size) == 0 || (std::isnan(p) && std::isnan(q))) continue;
    ++difference.differ;
    if (std::isnan(p) != std::isnan(q)) {
      difference.incomparable = "a NaN and a number";
    } else if (std::isinf(p) != std::isinf(q)) {
      difference.incomparable = "an infinity and a number";
    } else if (const auto ulp = testing::ulp_distance(left.scalar_type(), here, there)) {
      difference.ulp = std::max(difference.ulp, *ulp);
      if (p != q) farthest = std::max(farthest, std::abs(p - q));
    } else {
      difference.incomparable = absl::StrCat("other values of ", c10::toString(left.scalar_type()));
    }
  }
  if (farthest > 0) difference.of_largest = farthest / unit(largest, left.scalar_type());
  return difference;
}

}  // namespace gpipe::experiments
