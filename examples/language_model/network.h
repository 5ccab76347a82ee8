// Network: the language model that is trained: as a pipeline or, to compare, without one.
#ifndef LANGUAGE_MODEL_NETWORK_H_
#define LANGUAGE_MODEL_NETWORK_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "examples/language_model/documents.h"
#include "gpipe/gpipe.h"

namespace language_model {

class Network {
 public:
  virtual ~Network() = default;

  // The mean loss over the mini-batch's tokens. Adds its gradients to those of the parameters. Of
  // replicas (World::grid) each is given all rows, and takes its own.
  virtual double step(const Batch& batch) = 0;
  // The same loss without gradients.
  virtual double evaluate(const Batch& batch) = 0;
  // Scales all gradients so that their norm is at most `norm`.
  virtual void clip(double norm) = 0;
  // The token behind each row's, drawn with the probabilities that the network gives, each to the
  // power of 1 / temperature; with temperature 0 the most probable one. `inputs`: token ids and
  // documents, or what a KvCache gives for them, on the CPU; at most most_draws() rows.
  virtual std::vector<int64_t> draw(const gpipe::Tensors& inputs, double temperature,
                                    const at::Generator& generator) = 0;
  // So many that the first replica has all of them, and with them their part of a KvCache.
  virtual int64_t most_draws() const = 0;
  // For a KvCache, and to forget gradients.
  virtual torch::nn::Module& module() = 0;
  // Those of this process.
  virtual std::vector<at::Tensor> parameters() = 0;
  // Training or evaluation.
  virtual void train(bool on) = 0;
};

// The plain model on the CPU: each mini-batch as a whole, with all threads.
std::unique_ptr<Network> make_plain(const torch::nn::Sequential& model, bool bfloat16);

std::unique_ptr<Network> make_pipeline(const gpipe::GPipe& pipe, const gpipe::StepOptions& options,
                                       bool bfloat16);

// Operators that gain from it compute in bfloat16 while it lives, if it is asked for; parameters
// and their gradients stay as they are (docs/guide/12-mixed-precision.md).
class Autocast {
 public:
  Autocast(at::DeviceType device, bool bfloat16);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool on_;
};

}  // namespace language_model

#endif  // LANGUAGE_MODEL_NETWORK_H_
