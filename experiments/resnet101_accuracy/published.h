// The published results, and the table in which ours stand beside them.

#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_PUBLISHED_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "experiments/common/report.h"

namespace gpipe::experiments {

// What became of an experiment here.
struct Outcome {
  bool measured = false;
  double top1_error_percent = 0;  // if measured
  double throughput = 0;          // training images per second, if measured
  std::string note;               // what was run, or why nothing was
  std::vector<std::pair<std::string, std::string>> settings;
};

// One row for each published row and for each experiment, in the order of the published table.
// Experiments without an outcome are labelled not run with the note `not_asked`; rows that have no
// counterpart here are labelled published. Speed-ups of ours are relative to our dataparallel-256,
// as the published ones are to theirs, and are left out where that was not measured.
Report make_report(const std::map<std::string, Outcome>& outcomes, const std::string& not_asked);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_PUBLISHED_H_
