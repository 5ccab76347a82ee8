// flops: counts what each layer of a model computes and moves, without measuring.
//
// The counts replace a measured profile if no device is at hand. They also work for a model on the
// meta device, where nothing is computed.
#ifndef BALANCE_COSTS_FLOPS_H_
#define BALANCE_COSTS_FLOPS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "balance/costs/profile.h"
#include "gpipe/options.h"

namespace gpipe::balance {

// The work for one micro-batch. A value type.
struct Work {
  double flops = 0;      // floating-point operations
  double bytes = 0;      // bytes of the tensors that the operators read and write
  double operators = 0;  // number of operators, each of which a device must be given
};

struct LayerWork {
  Work forward;
  Work backward;
  Work weights;  // the part of the backward for weight gradients: see below
};

// Returns the work of each layer for one micro-batch, `sample`, as in balance/costs/profiler.h.
//
// Counted are the operators that the layers call themselves in a forward:
// - convolutions and matrix products (convolution, mm, addmm, bmm, baddbmm, mv, addmv, and those
//   made of them, such as linear and matmul): 2 for each multiplication and addition. The backward
//   has two such products, so twice the forward's work;
// - scaled_dot_product_attention: both of its products, whatever kernel computes them; half of them
//   if it is causal;
// - all other operators: 1 for each number in their outputs, and the same for their backward;
// - views and tensors that are only allocated: nothing.
// The bias of a product counts nothing. In a split backward, one product of each convolution, mm,
// addmm, mv and addmv is for weights, and everything else is for inputs: bmm, baddbmm and attention
// multiply activations.
//
// If a pipeline cannot separate layers, the first of them has the work of all, as in
// balance/costs/profiler.h. The model may be on any device where its forward and backward run. Its
// state is restored afterwards.
//
// Throws as profile() does in balance/costs/profiler.h.
//
// Example:
//   std::vector<LayerWork> work = flops(model, {at::empty({32, 3, 224, 224}, at::kMeta)});
//   work[0].forward.flops;
// `shared_inputs`: as in ProfileOptions.
std::vector<LayerWork> flops(const torch::nn::Sequential& model, const Tensors& sample,
                             const std::vector<int64_t>& shared_inputs = {});

// An assumed device. The defaults are about those of a GPU of 2018 with 16 or 32 GB. Only their
// ratios matter.
struct NominalDevice {
  double flops_per_second = 14e12;
  double bytes_per_second = 900e9;
  double seconds_per_operator = 5e-6;
  // The type of the device. Autocast counts if it is enabled for this type.
  c10::DeviceType type = c10::kCUDA;

  // Seconds for the work: those of its flops, its bytes and its operators are added.
  double seconds(const Work& work) const;
};

// The profile of a model on the meta device. Its bytes are those of profile()
// (balance/costs/profiler.h), its times are `device`'s times for the layers' work, and
// `Profile::device` is "nominal, from FLOPs". With deferred batch norms the forwards include the
// operators that gather moments, as on an accelerator.
//
// Throws as flops() does, and c10::ValueError for a model that is not on the meta device and for a
// speed that is not above 0.
Profile profile_on_meta(const torch::nn::Sequential& model, const Tensors& sample,
                        const NominalDevice& device = {},
                        const std::vector<int64_t>& shared_inputs = {},
                        bool deferred_batch_norm = false);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_FLOPS_H_
