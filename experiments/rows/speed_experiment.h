// SpeedExperiment: a published table of training speeds as a value, with what is needed to obtain
// its rows here.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_EXPERIMENT_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_EXPERIMENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "experiments/frame/scale.h"
#include "experiments/rows/row.h"
#include "experiments/rows/speed_variant.h"

namespace gpipe::experiments {

// How much is run at a scale below full.
struct SpeedSize {
  int64_t samples = 0;  // samples of an epoch
  int64_t epochs = 1;
  int64_t micro_batch = 1;  // samples of a micro-batch
  int64_t most_chunks = 1;  // published chunks beyond that are cut
};

struct SpeedExperiment {
  std::string name;     // the name of its folder
  std::string edition;  // the table's edition: "" (the current one), "2019-06"
  std::string title;    // the table's

  // The table's rows. If nothing was profiled, the published throughput of the first, or else that
  // of the script, says how fast the published device is.
  std::vector<SpeedVariant> variants;
  // Where that throughput is from; this follows "the throughput" in a note.
  std::string reference_source = "published";
  int64_t samples = 0;  // samples of a published epoch
  int64_t epochs = 10;  // the published number
  std::vector<std::string> remarks;
  // The settings of the variants that are assumed, because they were not published; empty: none.
  std::string assumed;

  std::function<Network(Scale)> network;
  SpeedSize smoke;
  SpeedSize small;
  MakeTarget target = models::random_target;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_EXPERIMENT_H_
