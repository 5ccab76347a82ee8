// grid: expresses numbers as multiples of one unit, so that their sums are exact.
//
// Internal to //balance.
#ifndef BALANCE_CUT_GRID_H_
#define BALANCE_CUT_GRID_H_

#include <cstdint>
#include <vector>

namespace gpipe::balance::internal {

// The unit is a power of two such that the values sum to at least 2^60 and less than 2^62 units. So
// whole numbers that sum to at most 2^60 are exact, and scaling all values by a power of two does
// not change their units.
class Grid {
 public:
  // Requirements: `values` are finite and at least 0.
  explicit Grid(const std::vector<double>& values);

  // Returns one of the values in units, rounded to the nearest unit, halves upwards.
  int64_t units(double value) const;

 private:
  int shift_ = 0;  // value * 2^shift_ is a number of units
};

}  // namespace gpipe::balance::internal

#endif  // BALANCE_CUT_GRID_H_
