// SpeedExperiment: a published table of training speeds as a value, with what is needed to obtain
// its rows here.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_EXPERIMENT_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_EXPERIMENT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "experiments/frame/report.h"
#include "experiments/frame/scale.h"
#include "experiments/rows/speed_variant.h"
#include "models/by_name.h"

namespace gpipe::experiments {

struct SpeedNetwork {
  std::string title;  // for people: "ResNet-101"
  // At full scale, its name is the one that profiles of it have (//balance --model).
  models::NamedModel model;
};

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

  // The table has a column "throughput", for the figures of the rows.
  PublishedTable table;
  std::vector<SpeedVariant> variants;  // the table's rows that can be run
  int64_t samples = 0;                 // samples of a published epoch
  int64_t epochs = 10;                 // the published number
  std::vector<std::string> remarks;
  // The settings of the variants that are assumed, because they were not published; empty: none.
  std::string assumed;

  std::function<SpeedNetwork(Scale)> network;
  SpeedSize smoke;
  SpeedSize small;
  // Targets for `rows` samples.
  std::function<at::Tensor(const models::NamedModel&, int64_t rows, c10::Device)> target =
      models::random_target;

  // The variant whose known throughput says how fast the published device is, if nothing was
  // profiled. `reference_source` says where the throughput is from; it follows "the throughput" in
  // a note.
  std::string reference;
  double reference_throughput = 0;
  std::string reference_source = "published";
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_EXPERIMENT_H_
