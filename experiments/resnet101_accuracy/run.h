// One experiment from the first epoch to the last.

#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_RUN_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_RUN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "experiments/common/progress.h"
#include "experiments/data/loader.h"
#include "experiments/resnet101_accuracy/lr_schedule.h"
#include "experiments/resnet101_accuracy/trainer.h"

namespace gpipe::experiments {

struct EpochResult {
  double lr = 0;  // of the last step
  double train_loss = 0;
  double seconds = 0;     // of training, loading included, validation not
  double throughput = 0;  // images per second of training
  double valid_loss = 0;
  double accuracy = 0;  // share of the validation images whose best score is right
};

struct RunOptions {
  std::string title;
  int64_t epochs = 1;
  LrSchedule schedule;
  double weight_decay = 1e-4;
  // File of the checkpoint written after every epoch; empty writes none.
  std::string checkpoint;
  // Begin with that file, if it exists.
  bool resume = false;
  // What must be the same when resumed.
  std::map<std::string, std::string> config;
  std::ostream* out = nullptr;       // lines for people
  std::ostream* progress = nullptr;  // the progress bar
  ProgressOptions progress_options;
  std::function<bool()> interrupted;  // asked after each step
};

struct RunResult {
  std::vector<EpochResult> epochs;  // those finished, resumed ones included
  bool interrupted = false;
  int64_t unreadable = 0;  // images
};

// SGD with Nesterov momentum 0.9 and the weight decay on all parameters. Throws what the trainer
// and the loaders throw, and c10::ValueError for a checkpoint that does not fit.
RunResult run(Trainer& trainer, Loader& train, Loader& validation, const RunOptions& options);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_RUN_H_
