// speed_table: a published table of training speeds.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_

#include <string>
#include <vector>

#include "experiments/frame/report.h"

namespace gpipe::experiments {

// As published; empty: not published.
struct SpeedRow {
  std::string experiment;
  std::string throughput;  // torchgpipe's, images per second
  std::string torchgpipe;  // its speed-up
  std::string huang = {};  // that of Huang et al.
  // Another run of torchgpipe's, by a script in its repository.
  std::string script_throughput = {};
  std::string script = {};  // its speed-up
};

// Columns: "throughput" and its ratio to the first row's, "speed_up", which is compared with
// torchgpipe's. A source that has no figure in a column is not among the column's sources.
PublishedTable speed_table(const std::string& title, const std::vector<SpeedRow>& rows);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_
