// Settings: the published experiments, and how they are run at a scale.
#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SETTINGS_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/frame/flags.h"
#include "experiments/resnet101_accuracy/lr_schedule.h"
#include "experiments/rows/scaled_resnet.h"

namespace gpipe::experiments {

enum class Way {
  kNaive,         // the plain network on one device
  kDataParallel,  // a replica on each device
  kPipeline,      // gpipe::GPipe
};

// An experiment as it was published, with ResNet-101 of 370 layers.
struct Experiment {
  std::string name;
  Way way = Way::kNaive;
  int64_t batch_size = 0;
  int64_t scaled_batch_size = 0;  // at the smaller scales
  int64_t devices = 1;
  int64_t chunks = 1;            // pipeline only
  std::vector<int64_t> balance;  // pipeline only
};

// The published experiments: naive-128, dataparallel-256, dataparallel-1k, pipeline-256,
// pipeline-1k, pipeline-4k.
const std::vector<Experiment>& published_experiments();

// The settings of one run.
struct Settings {
  Experiment published;
  ScaledResNet network;
  int64_t enlarge = 1;  // the factor for Fashion-MNIST's images of 28x28
  int64_t epochs = 90;
  int64_t limit_train = 0;  // images; 0: all
  bool flip = true;         // Fashion-MNIST; photographs are always augmented as published
  int64_t batch_size = 0;
  int64_t chunks = 1;
  std::vector<int64_t> balance;  // empty unless pipeline
  double weight_decay = 1e-4;
  LrDecay decay = LrDecay::kSteps;
  int64_t reference_batch = 256;
};

// The settings under the flags, with `limit_train` images to train on if it is given. Throws
// std::invalid_argument for a balance that does not sum up to the number of layers, and for more
// chunks than samples. Both are ignored except for pipelines.
Settings settle(const Experiment& experiment, const CommonFlags& flags,
                std::optional<int64_t> limit_train = std::nullopt);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SETTINGS_H_
