// Saving a training run after an epoch and taking it up again.

#ifndef GPIPE_EXPERIMENTS_COMMON_TRAINING_STATE_H_
#define GPIPE_EXPERIMENTS_COMMON_TRAINING_STATE_H_

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <map>
#include <string>

namespace gpipe::experiments {

struct TrainingState {
  // Finished epochs.
  int64_t epochs = 0;
  // What must not change between the runs, by name: network, data, batch size, seed, ...
  std::map<std::string, std::string> config;
  // Whatever else the run wants to find again, e.g. the figures of past epochs as JSON.
  std::string history;
};

// Writes parameters, buffers, the optimizer's momentum and the state to `path` as a whole: a crash
// in the middle leaves the file of before. Tensors are stored by their names in `model`, on no
// device in particular; because a GPipe has the names of the bare model, a run may go on with
// another balance and on other devices. Throws std::runtime_error if it cannot be written.
void save_training_state(const std::string& path, const torch::nn::Module& model,
                         torch::optim::SGD& optimizer, const TrainingState& state);

// Reads the state alone. Throws c10::ValueError as below, but for tensors.
TrainingState read_training_state(const std::string& path,
                                  const std::map<std::string, std::string>& config);

// Puts everything back in place and returns the state. `optimizer` must have been made from the
// parameters of `model`. Throws c10::ValueError, with model and optimizer unchanged, if the file is
// missing, cannot be read or is damaged, was made with another `config` (naming each difference),
// or has other tensors than the model.
TrainingState load_training_state(const std::string& path, torch::nn::Module& model,
                                  torch::optim::SGD& optimizer,
                                  const std::map<std::string, std::string>& config);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_COMMON_TRAINING_STATE_H_
