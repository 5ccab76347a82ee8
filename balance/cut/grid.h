// grid: numbers as multiples of one unit, so that sums of them are exact.
//
// Internal to //balance.
#ifndef BALANCE_CUT_GRID_H_
#define BALANCE_CUT_GRID_H_

#include <cstdint>
#include <vector>

namespace gpipe::balance::internal {

// The unit is a power of two, so small that the values sum to 2^60 units or more, but less than
// 2^62. So whole numbers that sum to at most 2^60 are exact, and scaling all values by a power of
// two leaves their units as they are.
class Grid {
 public:
  // `values` are finite and at least 0.
  explicit Grid(const std::vector<double>& values);

  // Of one of the values, to the nearest unit, halves upwards.
  int64_t units(double value) const;

 private:
  int shift_ = 0;  // value * 2^shift_ is in units
};

}  // namespace gpipe::balance::internal

#endif  // BALANCE_CUT_GRID_H_
