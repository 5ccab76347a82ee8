// DataParallel: training with a replica of the network on each device, as in torch's DataParallel.
#ifndef GPIPE_EXPERIMENTS_FRAME_DATA_PARALLEL_H_
#define GPIPE_EXPERIMENTS_FRAME_DATA_PARALLEL_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpipe/runtime/worker_pool.h"

namespace gpipe::experiments {

// Each replica has a thread of its own, with its share of the cores if it is on the CPU.
//
// Guarantees: gradients are those of the loss over the whole mini-batch, except in batch norms,
// which see only their replica's share; running statistics are those of the first replica.
//
// Thread-safety: to be used by one thread at a time.
//
// Example:
//   DataParallel parallel(model, make_model, {torch::kCPU, torch::kCPU});
//   double loss = parallel.step(images, labels);  // replaces the gradients of `model`
//   optimizer.step();
class DataParallel {
 public:
  // The mean loss over the samples that it is given.
  using LossFn = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  // `model` becomes the first replica and moves to the first device; `make_model` makes the other
  // replicas with the same structure, whose values do not matter. Throws c10::ValueError for an
  // empty list of devices or another structure.
  DataParallel(torch::nn::Sequential model,
               const std::function<torch::nn::Sequential()>& make_model,
               std::vector<c10::Device> devices, LossFn loss);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Runs one mini-batch, cut along the first dimension: the parameters of `model` are copied to the
  // replicas, and the gradients are replaced by the mini-batch's. Returns the mean loss. An
  // exception of a layer is thrown here once all replicas have ended.
  double step(const at::Tensor& input, const at::Tensor& target);

 private:
  struct Replica;

  void run(Replica& replica, double samples);

  LossFn loss_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::unique_ptr<internal::WorkerPool> threads_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_DATA_PARALLEL_H_
