// Speed table checks: GoogleTest expectations for published tables of training speeds. Their tests
// test them.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_

#include <cstdint>
#include <vector>

#include "experiments/frame/report.h"
#include "experiments/rows/speed_variant.h"

namespace gpipe::experiments {

// A row for each variant, in their order, and balances that cut a network of so many layers.
void expect_rows_of(const PublishedTable& table, const std::vector<SpeedVariant>& variants,
                    int64_t layers);

// torchgpipe's speed-ups are the ratios of its throughputs to the first row's, but for rounding.
void expect_speed_ups_of_throughputs(const PublishedTable& table);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_CHECKS_H_
