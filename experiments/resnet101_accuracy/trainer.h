// The three ways to train one network, behind one face.

#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_TRAINER_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_TRAINER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::experiments {

// To be used by one thread at a time.
class Trainer {
 public:
  virtual ~Trainer() = default;

  // One mini-batch (images float [n, channels, height, width], labels int64 [n], on any device):
  // replaces the gradients of the parameters and returns the mean cross entropy.
  virtual double step(const at::Tensor& images, const at::Tensor& labels) = 0;

  // The scores [n, classes] of images, without a graph, on the device of the last layer. In the
  // mode, training or evaluation, that `module` is in.
  virtual at::Tensor predict(const at::Tensor& images) = 0;

  // Whose parameters are trained, under the names of the bare network.
  virtual torch::nn::Module& module() = 0;

  // The device to wait for when time is taken.
  virtual c10::Device first_device() const = 0;
};

using MakeModel = std::function<torch::nn::Sequential()>;

std::unique_ptr<Trainer> make_naive_trainer(const MakeModel& make_model, c10::Device device);

// See data_parallel.h.
std::unique_ptr<Trainer> make_data_parallel_trainer(const MakeModel& make_model,
                                                    const std::vector<c10::Device>& devices);

// Trains with GPipe::step under the schedule "gpipe" or "1f1b". Throws what GPipe throws, and
// c10::ValueError for another schedule.
std::unique_ptr<Trainer> make_pipeline_trainer(const MakeModel& make_model,
                                               const GPipeOptions& options,
                                               const std::string& schedule);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_TRAINER_H_
