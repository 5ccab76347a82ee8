// run_training: training and validation from the first epoch to the last, with resuming after a
// stop.
#ifndef GPIPE_EXPERIMENTS_ROWS_TRAINING_RUN_H_
#define GPIPE_EXPERIMENTS_ROWS_TRAINING_RUN_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "experiments/data/loader.h"
#include "experiments/frame/program.h"
#include "experiments/frame/trainer.h"

namespace gpipe::experiments {

struct EpochResult {
  double lr = 0;  // the learning rate of the last step
  double train_loss = 0;
  double seconds = 0;     // seconds of training, with loading and without validation
  double throughput = 0;  // images per second of training
  double valid_loss = 0;
  double accuracy = 0;  // share of the validation images whose best score is right
};

struct TrainingOptions {
  std::string title;
  int64_t epochs = 1;
  // The learning rate of 0-based step `step` of a run of `epochs` epochs.
  std::function<double(int64_t step, int64_t epochs)> lr;
  // The options of torch::optim::SGD, except for the learning rate.
  double momentum = 0.9;
  bool nesterov = true;
  double weight_decay = 1e-4;
  // The mean loss of scores [n, classes] of labels [n], for the validation.
  std::function<at::Tensor(const at::Tensor& scores, const at::Tensor& labels)> loss;
  // The file for the timeline of a pipeline's last step of training; empty: none. A run that is
  // stopped before, or resumed at its end, writes none.
  std::string trace;
  // The folder of the checkpoint (gpipe/saving/saving.h), which is written after every epoch;
  // empty: none is.
  std::string state;
  // Whether to begin from the checkpoint, if it exists.
  bool resume = false;
  // What must be the same on resume. The number of epochs is not part of it: it may change if the
  // learning rates of the epochs already run would have been the same.
  std::map<std::string, std::string> config;
  // Called with all finished epochs, resumed ones included, after each.
  std::function<void(const std::vector<EpochResult>& epochs)> on_epoch;
};

struct TrainingResult {
  std::vector<EpochResult> epochs;  // the finished ones, including resumed ones
  bool interrupted = false;
  int64_t unreadable = 0;  // images that could not be read
};

// Checks before the work that options.state fits the options, if it exists and is to be resumed.
// Throws c10::ValueError, and std::runtime_error for a damaged one.
void check_resumable(const TrainingOptions& options, int64_t steps_per_epoch);

// Throws what the trainer and the loaders throw, c10::ValueError for a state that does not fit, and
// what save_checkpoint() and load_checkpoint() throw.
TrainingResult run_training(Trainer& trainer, Loader& train, Loader& validation,
                            const TrainingOptions& options, const RunContext& context);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_TRAINING_RUN_H_
