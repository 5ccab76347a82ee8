// make_run: prepares one experiment of the table: its settings, and how it runs.
#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_RUN_EXPERIMENT_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_RUN_EXPERIMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"
#include "experiments/frame/report.h"
#include "experiments/resnet101_accuracy/settings.h"
#include "experiments/resnet101_accuracy/source.h"

namespace gpipe::experiments {

struct AccuracyFlags {
  CommonFlags common;
  std::optional<int64_t> limit_train;
  int64_t workers = 1;
  std::string state_folder;  // empty: nothing is saved
  bool resume = false;
  bool overwrite = false;
};

// The folder of an experiment's checkpoint. Requirements: flags.state_folder is set.
std::string state_folder(const AccuracyFlags& flags, const std::string& experiment);

// Prepares the experiment on `source`: all that can be checked before it runs is checked. Throws
// std::invalid_argument or c10::ValueError if the flags do not fit it, or if a saved run does not
// fit or would be lost.
RunVariant make_run(const AccuracyFlags& flags, const Experiment& experiment, const Source& source);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_RUN_EXPERIMENT_H_
