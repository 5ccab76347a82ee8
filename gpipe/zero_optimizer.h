// ZeroOptimizer: over replicas, an optimizer whose states are kept once.
#ifndef GPIPE_ZERO_OPTIMIZER_H_
#define GPIPE_ZERO_OPTIMIZER_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe {

// Each parameter belongs to one replica (World::grid), which keeps its state, updates it, and gives
// the new values to the others: stage 1 of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations
// Toward Training Trillion Parameter Models", 2020). Parameters are not split, so the bits are
// those of the plain optimizer, for any optimizer that treats each parameter alone: SGD, Adam,
// AdamW, Adagrad, RMSprop; not LBFGS.
//
// Without replicas it is the plain optimizer of the parameters of this process.
//
// Requirements: all processes make the same calls, in the same order. The pipeline outlives it.
// The replicas share out what trains when this is made: freeze the rest (adapters' base) before.
//
// Example:
//   gpipe::ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
//     return std::make_unique<torch::optim::AdamW>(std::move(parameters), 1e-3);
//   });
//   optimizer.zero_grad();
//   pipe->step(inputs, targets, loss_fn);
//   optimizer.step();
class ZeroOptimizer {
 public:
  // Makes an optimizer of these parameters. The list may be empty.
  using Make =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

  // Throws c10::ValueError if `make` is empty, returns null, or returns an optimizer of a parameter
  // that it was not given.
  ZeroOptimizer(GPipe pipe, const Make& make);

  // Updates this replica's own parameters, and gets the new values of the others. If some processes
  // make another call instead, it throws as the calls of GPipe do.
  void step();
  // Clears the gradients of all parameters of this process.
  void zero_grad(bool set_to_none = true);

  // The optimizer of this replica's own parameters: for learning rates, say, which must be set in
  // all processes.
  torch::optim::Optimizer& local() { return *optimizer_; }
  // This replica's own parameters, in the model's order.
  const std::vector<at::Tensor>& owned_parameters() const { return owned_; }

 private:
  GPipe pipe_;
  std::vector<at::Tensor> parameters_;  // of this process
  std::vector<int64_t> owners_;         // [parameter]
  std::vector<at::Tensor> owned_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace gpipe

#endif  // GPIPE_ZERO_OPTIMIZER_H_
