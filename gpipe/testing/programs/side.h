// Side: a program's model, with its optimizer and batches, and the calls that the plain model
// makes.
#ifndef GPIPE_TESTING_PROGRAMS_SIDE_H_
#define GPIPE_TESTING_PROGRAMS_SIDE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/options.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/programs/program.h"

namespace gpipe::testing::programs {

struct Side {
  Workshop workshop;
  torch::nn::Sequential model{nullptr};
  std::vector<at::Tensor> parameters;  // each parameter once
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

// Whether the program's stages are on several devices, if there are several accelerators: true for
// every second program.
bool spreads(const Program& program);

// Makes a side on the CPU.
Side make_side(const Program& program, bool copies_skips = false);
void make_optimizer(const Program& program, const std::vector<at::Tensor>& parameters, Side& side);

// A tensor given to the model, and the leaf behind it that gets the gradient.
struct Given {
  at::Tensor leaf;
  at::Tensor tensor;
  int64_t version = 0;  // the leaf's version when this was made
};

struct Batch {
  std::vector<Given> inputs;
  at::Tensor target;

  Tensors tensors() const;
};

// The batch of a call, the same in each run. Each side makes its own batch, on the devices of its
// first and last layer.
Batch make_batch(const Program& program, int64_t call, c10::Device first, c10::Device last);

// The loss of the program. A target has one number per row, so the loss fits every output, even if
// some layers of the program are left out.
LossFn make_loss(const Program& program);

// The seed for LibTorch's generator before a call.
uint64_t call_seed(const Program& program, int64_t call);

// While the object lives, this thread rounds and flushes denormals as the program says. It is for
// the CPU only, because the caller's modes do not affect kernels of other devices.
class FloatSettings {
 public:
  explicit FloatSettings(const Program& program);
  ~FloatSettings();
  FloatSettings(const FloatSettings&) = delete;
  FloatSettings& operator=(const FloatSettings&) = delete;
};

StepResult run_plain(const Program& program, PlainModel& plain, const Batch& batch,
                     const LossFn& loss);

// Steps the optimizer, and zeroes or removes the gradients, if the program does so after this call.
void end_call(const Program& program, int64_t call, Side& side);

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_SIDE_H_
