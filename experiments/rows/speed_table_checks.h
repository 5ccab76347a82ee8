// Speed table checks: GoogleTest expectations for published tables of training speeds. They have no
// test of their own: the tests of the tables use them.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_

#include <cstdint>
#include <vector>

#include "experiments/rows/speed_variant.h"

namespace gpipe::experiments {

// Expects balances that add up to `layers`.
void expect_balances_of(int64_t layers, const std::vector<SpeedVariant>& variants);

// Expects torchgpipe's speed-ups to be the ratios of its throughputs to the first row's, up to
// rounding.
void expect_speed_ups_of_throughputs(const std::vector<SpeedVariant>& variants);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_
