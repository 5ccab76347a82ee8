#include "balance/cut/grid.h"

#include <algorithm>
#include <cmath>

namespace gpipe::balance::internal {
namespace {

constexpr int kBits = 62;
// The margin covers the rounding of a sum of 2^30 doubles and the rounding of all values to units.
constexpr double kMargin = 0x1p-20;

}  // namespace

Grid::Grid(const std::vector<double>& values) {
  const double largest = values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
  if (largest <= 0.0) return;
  int exponent = 0;
  std::frexp(largest, &exponent);
  double sum = 0.0;  // in units of 2^exponent, so that it cannot overflow
  for (double value : values) sum += std::ldexp(value, -exponent);
  int sum_exponent = 0;
  std::frexp(sum + sum * kMargin, &sum_exponent);
  shift_ = kBits - exponent - sum_exponent;
}

int64_t Grid::units(double value) const {
  // llround() is used because llrint() would depend on the rounding mode.
  return std::llround(std::ldexp(value, shift_));
}

}  // namespace gpipe::balance::internal
