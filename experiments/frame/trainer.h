// Trainer: the three ways to train a network, behind one interface.
#ifndef GPIPE_EXPERIMENTS_FRAME_TRAINER_H_
#define GPIPE_EXPERIMENTS_FRAME_TRAINER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/setup.h"
#include "models/by_name.h"

namespace gpipe::experiments {

// A training task: the network, the loss and the optimizer.
struct Task {
  // Makes the network. Called once; for data parallelism once for each device, with the same
  // structure.
  std::function<torch::nn::Sequential()> make_model;
  // The mean loss of a mini-batch or of a part of it: a scalar.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
};

// The task of a model whose parameters are drawn from `seed`.
Task task_of(const models::NamedModel& model, uint64_t seed);

// Thread-safety: to be used by one thread at a time.
class Trainer {
 public:
  virtual ~Trainer() = default;

  // Runs one mini-batch (float [n, ...], its targets [n, ...], on any device): replaces the
  // gradients of the parameters and returns the mean loss.
  virtual double step(const at::Tensor& input, const at::Tensor& target) = 0;

  // The network's output for an input, without a graph, on the device of the last layer. It runs in
  // the mode, training or evaluation, that `module` is in.
  virtual at::Tensor predict(const at::Tensor& input) = 0;

  // The module whose parameters are trained, under the names of the bare network.
  virtual torch::nn::Module& module() = 0;

  // Sets the observer of the next steps' actions (gpipe/runtime/observer.h); empty: none. Only
  // pipelines call it.
  virtual void observe(const Observer& /*observer*/) {}
  // The routes of a pipeline; none for others.
  virtual std::optional<Routes> routes() const { return std::nullopt; }

  // The devices for inputs and for targets. Time is measured by waiting for the first.
  virtual c10::Device input_device() const = 0;
  virtual c10::Device target_device() const = 0;
};

std::unique_ptr<Trainer> make_naive_trainer(const Task& task, c10::Device device);

// Trains with a replica on each device (data_parallel.h).
std::unique_ptr<Trainer> make_data_parallel_trainer(const Task& task,
                                                    const std::vector<c10::Device>& devices);

// Throws what GPipe throws, for example for a balance that does not fit the network.
std::unique_ptr<Trainer> make_pipeline_trainer(const Task& task, const GPipeOptions& options,
                                               const ScheduleGenerator& schedule);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_TRAINER_H_
