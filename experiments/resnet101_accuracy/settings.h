// The published experiments, and what is really run of them at a scale.

#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SETTINGS_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/resnet101_accuracy/lr_schedule.h"

namespace gpipe::experiments {

enum class Way {
  kNaive,         // the plain network on one device
  kDataParallel,  // a replica on each device
  kPipeline,      // gpipe::GPipe
};

enum class Scale {
  kSmoke,  // a minute or less for each experiment, on two cores
  kSmall,  // some minutes
  kFull,   // the published configuration
};

// As published, with ResNet-101 of 370 layers.
struct Experiment {
  std::string name;
  Way way = Way::kNaive;
  int64_t batch_size = 0;
  int64_t scaled_batch_size = 0;  // at the smaller scales: not as published
  int64_t devices = 1;
  int64_t chunks = 1;            // pipeline only
  std::vector<int64_t> balance;  // pipeline only
};

// naive-128, dataparallel-256, dataparallel-1k, pipeline-256, pipeline-1k, pipeline-4k.
const std::vector<Experiment>& published_experiments();

// The experiments of a comma-separated list; all of them for an empty one. torchgpipe's command
// line says "gpipe-256" for what its table calls "pipeline-256": both are taken. Throws
// std::invalid_argument that lists the names.
std::vector<Experiment> find_experiments(const std::string& names);

// Throws std::invalid_argument unless `text` is smoke, small or full.
Scale parse_scale(const std::string& text);

// "140,230" or "[140, 230]"; empty for an empty text. Throws std::invalid_argument.
std::vector<int64_t> parse_balance(const std::string& text);

// "[140, 230]".
std::string to_text(const std::vector<int64_t>& numbers);

// The same shares of `layers` layers, each partition with one at least. Throws
// std::invalid_argument for fewer layers than partitions.
std::vector<int64_t> scale_balance(const std::vector<int64_t>& balance, int64_t layers);

// What the command line sets by hand; 0 or empty leaves it to the scale.
struct Overrides {
  int64_t epochs = 0;
  int64_t batch_size = 0;
  int64_t chunks = 0;
  std::vector<int64_t> balance;
  int64_t limit_train = 0;
};

// What is run.
struct Settings {
  Experiment published;
  std::vector<int64_t> blocks;  // of each group
  int64_t base_planes = 64;
  int64_t image_size = 224;  // of photographs
  int64_t enlarge = 1;       // of Fashion-MNIST's 28x28
  int64_t epochs = 90;
  int64_t limit_train = 0;  // images; 0: all
  bool flip = true;         // Fashion-MNIST; photographs are always augmented as published
  int64_t batch_size = 0;
  int64_t chunks = 1;
  std::vector<int64_t> balance;  // empty unless pipeline
  double weight_decay = 1e-4;
  LrDecay decay = LrDecay::kSteps;
  int64_t reference_batch = 256;

  // "ResNet [1, 1, 1, 1] of 8 planes"
  std::string network() const;
  int64_t layers() const;  // of the flat network
};

// Throws std::invalid_argument if an override does not fit the experiment, such as a balance for
// one without a pipeline or one that does not sum up to the number of layers.
Settings settle(const Experiment& experiment, Scale scale, const Overrides& overrides);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_SETTINGS_H_
