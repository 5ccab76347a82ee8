#include "balance/cut/grid.h"

#include <algorithm>
#include <cmath>

namespace gpipe::balance::internal {
namespace {

constexpr int kBits = 62;
// More than what adding up to 2^30 values in double can round away, and all rounding to units.
constexpr double kMargin = 0x1p-20;

}  // namespace

Grid::Grid(const std::vector<double>& values) {
  const double largest = values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
  if (largest <= 0.0) return;
  int exponent = 0;
  std::frexp(largest, &exponent);
  double sum = 0.0;  // in 2^exponent, lest it overflow
  for (double value : values) sum += std::ldexp(value, -exponent);
  int sum_exponent = 0;
  std::frexp(sum + sum * kMargin, &sum_exponent);
  shift_ = kBits - exponent - sum_exponent;
}

int64_t Grid::units(double value) const {
  // Not llrint, which would ask for the rounding mode.
  return std::llround(std::ldexp(value, shift_));
}

}  // namespace gpipe::balance::internal
