// Speed table checks: GoogleTest expectations for published tables of training speeds. They have no
// test of their own: the tests of the tables use them.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_

#include <cstdint>
#include <vector>

#include "experiments/frame/report.h"
#include "experiments/rows/speed_variant.h"

namespace gpipe::experiments {

// Expects a row for each variant, in the variants' order, and balances that add up to `layers`.
void expect_rows_of(const PublishedTable& table, const std::vector<SpeedVariant>& variants,
                    int64_t layers);

// Expects torchgpipe's speed-ups to be the ratios of its throughputs to the first row's, up to
// rounding.
void expect_speed_ups_of_throughputs(const PublishedTable& table);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_
