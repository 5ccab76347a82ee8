// PlainModel: the same Sequential without a pipeline, run micro-batch by micro-batch.
//
// What a pipeline computes is checked against it bitwise: the same micro-batches, the same draws
// (see gpipe/internal/operators/random_streams.h), gradients accumulated in the order in which a
// schedule runs its backwards.
#ifndef GPIPE_TESTING_PLAIN_MODEL_H_
#define GPIPE_TESTING_PLAIN_MODEL_H_

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "gpipe/options.h"

namespace gpipe::testing {

// In which order the micro-batches run their backward.
enum class BackwardOrder { kAscending /* 1F1B */, kDescending /* GPipe, forward() */ };

// In memory of its own; so is the gradient that goes back.
at::Tensor own_copy(const at::Tensor& tensor);

class PlainModel {
 public:
  // The inputs of the layers `copied_before` come in memory of their own, and the gradients that go
  // back likewise, as where a pipeline's next device begins. Elsewhere a view begins somewhere in a
  // line of memory, and there sums may have another order.
  PlainModel(torch::nn::Sequential model, int64_t chunks, std::set<int64_t> copied_before = {});

  // Like GPipe::step with keep_outputs.
  StepResult step(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                  BackwardOrder order);

  // Like GPipe::forward of the mini-batch, then loss_fn over all of it and backward. With
  // `autocast` only the forward runs under its device's autocast to that type, without the cache of
  // cast weights, whose gradients would wait for the last use in all micro-batches. The outputs
  // require a gradient where the model's do.
  StepResult forward_backward(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                              std::optional<at::ScalarType> autocast = std::nullopt);

  // Like GPipe::forward, in the caller's grad mode. A backward through it adds up the gradients as
  // forward_backward() does, as long as the leaves have none yet.
  Tensors forward(const Tensors& inputs);

 private:
  std::vector<Tensors> run(const std::vector<Tensors>& micro_batches);
  // Gives each gradient memory of its own. LibTorch lets two parameters' gradients be one tensor
  // (`x + a.unsqueeze(0) + b.unsqueeze(0)` with a single row), and then adds each
  // parameter's next gradient to that one tensor.
  void unshare_gradients();

  torch::nn::Sequential model_;
  int64_t chunks_;
  std::set<int64_t> copied_before_;
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_PLAIN_MODEL_H_
