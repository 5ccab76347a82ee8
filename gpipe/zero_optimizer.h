// ZeroOptimizer: an optimizer for replicas of a pipeline. The state of each parameter is kept by
// one replica only.
#ifndef GPIPE_ZERO_OPTIMIZER_H_
#define GPIPE_ZERO_OPTIMIZER_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe {

namespace internal {
struct ZeroOptions;
}

// Each parameter belongs to one replica (World::grid), which keeps its state, updates it, and gives
// the new values to the others: stage 1 of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations
// Toward Training Trillion Parameter Models", 2020). Parameters are not split, so the bits are
// those of the plain optimizer, for any optimizer that treats each parameter alone: SGD, Adam,
// AdamW, Adagrad, RMSprop; not LBFGS.
//
// Without replicas it is the plain optimizer of the parameters of this process.
//
// It is a torch::optim::Optimizer: schedulers and functions that take one take it. Learning rates
// and other options are those of param_groups(), and each step uses what they are then. Set them on
// all ranks alike, as every rank calls step(). The first group also has the parameters that other
// replicas update, so zero_grad() clears all gradients of this process. state() is empty: states
// are in local(). save() and load() are those of local(); save_checkpoint writes the states of all
// replicas.
//
// Requirements: all processes make the same calls, in the same order. The pipeline outlives it.
// The replicas share out what trains when this is made: freeze the rest (adapters' base) before.
//
// Example:
//   gpipe::ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
//     return std::make_unique<torch::optim::AdamW>(std::move(parameters), 1e-3);
//   });
//   torch::optim::StepLR scheduler(optimizer, /*step_size=*/10, /*gamma=*/0.1);
//   optimizer.zero_grad();
//   pipe->step(inputs, targets, loss_fn);
//   optimizer.step();
class ZeroOptimizer final : public torch::optim::Optimizer {
 public:
  // Makes an optimizer of these parameters. The list may be empty.
  using Make =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

  // All processes make it together: if `make` throws on one rank, it fails on all ranks, and they
  // may try again. `make` must not make such a call itself.
  //
  // Throws c10::ValueError if `make` is empty, returns null, or returns an optimizer without groups
  // or of a parameter that it was not given; over processes DistributedFailure if another rank
  // throws, and Disagreement if another rank makes another call instead.
  ZeroOptimizer(GPipe pipe, const Make& make);

  // Updates this replica's own parameters, and gets the new values of the others. Returns an
  // undefined tensor. If some processes make another call instead, it throws as the calls of GPipe
  // do. Throws c10::ValueError for a closure, and if groups or parameters were added. Over replicas
  // all ranks throw c10::ValueError, before anything changes, if ranks whose groups had the same
  // learning rates when they were made have different ones now.
  torch::Tensor step(LossClosure closure = nullptr) override;
  // Clears the gradients of all parameters of this process.
  void zero_grad(bool set_to_none = true);

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // The optimizer of this replica's own parameters, with their states.
  const torch::optim::Optimizer& local() const { return *optimizer_; }
  // If the learning rate of a group of local() is set, the next step() uses it, too. Other options
  // that are set on local() do not count: the next step() replaces them with those of
  // param_groups().
  torch::optim::Optimizer& local() { return *optimizer_; }
  // This replica's own parameters, in the model's order.
  const std::vector<at::Tensor>& owned_parameters() const { return owned_; }

 private:
  friend struct internal::ZeroOptions;  // gpipe/saving

  // Calls `make`, and fills in all members but `pipe_`.
  void build(const Make& make);
  // Copies the options of this object's groups to those of `optimizer_`, and back.
  void give_options() const;
  void take_options();
  // Takes the learning rates that were set on `optimizer_` since give_options().
  void take_rates();

  GPipe pipe_;
  std::vector<at::Tensor> parameters_;  // the parameters of this process
  std::vector<int64_t> owners_;         // [parameter] the replica that updates it
  std::vector<at::Tensor> owned_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::string first_rates_;                                 // the learning rates at the beginning
  mutable std::vector<std::optional<double>> given_rates_;  // [group] what give_options() has set
};

}  // namespace gpipe

#endif  // GPIPE_ZERO_OPTIMIZER_H_
