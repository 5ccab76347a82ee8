// speed_table: a published table of training speeds.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_

#include <string>
#include <vector>

#include "experiments/frame/report.h"
#include "experiments/rows/speed_variant.h"

namespace gpipe::experiments {

// Columns: "throughput" and its ratio to the first row's, "speed_up", which is compared with
// torchgpipe's. A source that has no figure in a column is not among the column's sources.
PublishedTable speed_table(const std::string& title, const std::vector<SpeedVariant>& rows);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_
