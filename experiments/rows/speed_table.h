// speed_table: a published table of training speeds.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_

#include <string>
#include <vector>

#include "experiments/frame/report.h"

namespace gpipe::experiments {

// A row of the published table. A text is empty if the figure was not published.
struct SpeedRow {
  std::string experiment;
  std::string throughput;  // torchgpipe's, images per second
  std::string torchgpipe;  // torchgpipe's speed-up
  std::string huang = {};  // the speed-up of Huang et al.
  // The figures of another run of torchgpipe, by a script in its repository.
  std::string script_throughput = {};
  std::string script = {};  // the script's speed-up
};

// Columns: "throughput" and its ratio to the first row's, "speed_up", which is compared with
// torchgpipe's. A source that has no figure in a column is not among the column's sources.
PublishedTable speed_table(const std::string& title, const std::vector<SpeedRow>& rows);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_TABLE_H_
