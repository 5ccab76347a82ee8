// Network: the language model that is trained, as a pipeline or, for comparison, without one.
#ifndef LANGUAGE_MODEL_NETWORK_H_
#define LANGUAGE_MODEL_NETWORK_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "examples/common/modes.h"
#include "examples/language_model/documents.h"
#include "gpipe/gpipe.h"

namespace language_model {

class Network {
 public:
  virtual ~Network() = default;

  // Returns the mean loss over the mini-batch's tokens, and adds its gradients to those of the
  // parameters. Each replica (World::grid) is given all rows, and takes its own.
  virtual double step(const Batch& batch) = 0;
  // Returns the loss that step() would return, without computing gradients.
  virtual double evaluate(const Batch& batch) = 0;
  // Scales all gradients so that their norm is at most `norm`.
  virtual void clip(double norm) = 0;
  // The next token of each row, drawn with the probabilities that the network gives, each to the
  // power of 1 / temperature; with temperature 0 the most probable one. `inputs`: token ids and
  // documents, or what a KvCache makes of them, on the CPU; at most most_draws() rows.
  virtual std::vector<int64_t> draw(const gpipe::Tensors& inputs, double temperature,
                                    const at::Generator& generator) = 0;
  // The most rows that draw() takes. The number is such that the first replica has all rows, and
  // with them all of a KvCache.
  virtual int64_t most_draws() const = 0;
  // The model, as a KvCache and zero_grad() need it.
  virtual torch::nn::Module& module() = 0;
  // The parameters of this process.
  virtual std::vector<at::Tensor> parameters() = 0;
  // Sets the mode: training or evaluation.
  virtual void train(bool on) = 0;
};

// The plain model on the CPU. It computes each mini-batch as a whole, with all threads.
std::unique_ptr<Network> make_plain(const torch::nn::Sequential& model, bool bfloat16);

std::unique_ptr<Network> make_pipeline(const gpipe::GPipe& pipe, const gpipe::StepOptions& options,
                                       bool bfloat16);

using examples::Autocast;

}  // namespace language_model

#endif  // LANGUAGE_MODEL_NETWORK_H_
