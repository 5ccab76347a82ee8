// PlainModel: runs the same Sequential without a pipeline, micro-batch by micro-batch.
//
// A pipeline's results are compared with it bitwise. It has the same micro-batches and the same
// random numbers (see gpipe/internal/operators/random_streams.h), and accumulates gradients in the
// order in which a schedule runs its backwards.
#ifndef GPIPE_TESTING_PLAIN_MODEL_H_
#define GPIPE_TESTING_PLAIN_MODEL_H_

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "gpipe/options.h"

namespace gpipe::testing {

// The order in which the backwards of the micro-batches run.
enum class BackwardOrder { kAscending /* 1F1B */, kDescending /* GPipe, forward() */ };

// A copy in memory of its own. The gradient that goes back through it has memory of its own, too.
at::Tensor own_copy(const at::Tensor& tensor);

class PlainModel {
 public:
  // The inputs of the layers `copied_before` are copied to memory of their own, and so are the
  // gradients that go back, as at the beginning of a pipeline's next device. Without a copy a view
  // may begin anywhere within a cache line, and then sums may have another order.
  PlainModel(torch::nn::Sequential model, int64_t chunks, std::set<int64_t> copied_before = {});

  // Does what GPipe::step does with keep_outputs.
  StepResult step(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                  BackwardOrder order);

  // Does what GPipe::forward of the mini-batch does, then runs loss_fn over the whole mini-batch
  // and the backward. With `autocast` only the forward runs under its device's autocast to that
  // type. It has no cache of cast weights, because their gradients would wait for the last use in
  // all micro-batches. The outputs require a gradient if the model's outputs do.
  StepResult forward_backward(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                              std::optional<at::ScalarType> autocast = std::nullopt);

  // Does what GPipe::forward does, in the caller's grad mode. A backward through the result adds up
  // the gradients as forward_backward() does, if the leaves have no gradients yet.
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
