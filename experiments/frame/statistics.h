// Statistics: summary figures of repeated measurements, for reports.
#ifndef GPIPE_EXPERIMENTS_FRAME_STATISTICS_H_
#define GPIPE_EXPERIMENTS_FRAME_STATISTICS_H_

#include <cstddef>
#include <vector>

namespace gpipe::experiments {

// Each function throws std::invalid_argument for an empty list: a mean of nothing would be printed
// as a figure that was never measured.

double mean(const std::vector<double>& values);

// The largest of the values after the first `skip` ones (warm-up), divided by the smallest. If none
// is left, all values count.
double range_after(const std::vector<double>& values, std::size_t skip);

// Mean of the values after the first `skip` ones (warm-up). If none is left, all values count.
double mean_after(const std::vector<double>& values, std::size_t skip);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_STATISTICS_H_
