// TrainingState: saves a training run after an epoch, and resumes it.
#ifndef GPIPE_EXPERIMENTS_ROWS_TRAINING_STATE_H_
#define GPIPE_EXPERIMENTS_ROWS_TRAINING_STATE_H_

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
  // Anything else that the run wants to keep, e.g. the figures of past epochs as JSON.
  std::string history;
};

// Writes parameters, buffers, the optimizer's momentum and the state to `path` as a whole: after a
// crash in the middle the previous file is still there. Tensors are stored by their names in
// `model`, without a device. Because a GPipe has the names of the bare model, a run may continue
// with another balance and on other devices. Throws std::runtime_error if it cannot be written.
void save_training_state(const std::string& path, const torch::nn::Module& model,
                         torch::optim::SGD& optimizer, const TrainingState& state);

// Reads only the state. Throws c10::ValueError as below, except for tensors.
TrainingState read_training_state(const std::string& path,
                                  const std::map<std::string, std::string>& config);

// Restores everything and returns the state. `optimizer` must have been made from the parameters of
// `model`. Throws c10::ValueError, with model and optimizer unchanged, if the file is missing,
// cannot be read or is damaged, was made with another `config` (naming each difference), or has
// other tensors than the model.
TrainingState load_training_state(const std::string& path, torch::nn::Module& model,
                                  torch::optim::SGD& optimizer,
                                  const std::map<std::string, std::string>& config);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_TRAINING_STATE_H_
