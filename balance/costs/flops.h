// flops: what each layer of a model has to compute and to move, counted and not measured.
//
// It stands in for a profile where no device is at hand, also for models on the meta device, where
// nothing is computed.
#ifndef BALANCE_COSTS_FLOPS_H_
#define BALANCE_COSTS_FLOPS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "balance/costs/profile.h"
#include "gpipe/options.h"

namespace gpipe::balance {

// Of one micro-batch. A value type.
struct Work {
  double flops = 0;      // floating-point operations
  double bytes = 0;      // of tensors that its operators read and write
  double operators = 0;  // their number: what a device has to be given one by one
};

struct LayerWork {
  Work forward;
  Work backward;
  Work weights;  // the part of the backward that is for weights: see below
};

// By layer, the work of one micro-batch, which is `sample`, as in balance/costs/profiler.h.
//
// Counted are the operators that the layers call themselves, while a forward runs:
// - convolutions and matrix products (convolution, mm, addmm, bmm, baddbmm, mv, addmv, and whatever
//   consists of them, as linear and matmul do): 2 for each multiplication and addition. Their
//   backward, of which there are two such products, has twice the forward's work;
// - scaled_dot_product_attention: both of its products, whatever kernel computes them; half of them
//   if it is causal;
// - all others: 1 for each number of their outputs, and the same for their backward;
// - views and tensors that are only allocated: nothing.
// A bias is not counted beside its product. Of a split backward one product of each convolution,
// mm, addmm, mv and addmv is for weights, and all else for inputs; bmm, baddbmm and attention
// multiply activations.
//
// Layers that a pipeline cannot separate count at the first of them, as in
// balance/costs/profiler.h. The model may be on any device where its forward and backward run, and
// is afterwards as before.
//
// Throws as profile() does in balance/costs/profiler.h.
//
// Example:
//   std::vector<LayerWork> work = flops(model, {at::empty({32, 3, 224, 224}, at::kMeta)});
//   work[0].forward.flops;
// `shared_inputs`: as in ProfileOptions.
std::vector<LayerWork> flops(const torch::nn::Sequential& model, const Tensors& sample,
                             const std::vector<int64_t>& shared_inputs = {});

// A device that nobody has measured. The defaults are about those of a GPU with 16 or 32 GB of
// 2018: what counts is how they relate.
struct NominalDevice {
  double flops_per_second = 14e12;
  double bytes_per_second = 900e9;
  double seconds_per_operator = 5e-6;
  // The type of the device: autocast is that of this type, where it is enabled.
  c10::DeviceType type = c10::kCUDA;

  // The sum of what its flops, its bytes and its operators take.
  double seconds(const Work& work) const;
};

// The profile of a model on the meta device: bytes as profile() has them
// (balance/costs/profiler.h), and as times what `device` takes for the layers' work.
// `Profile::device` is "nominal, from FLOPs". Deferred batch norms' forwards have the operators in
// them that gather moments, as on an accelerator.
//
// Throws as flops() does, and c10::ValueError for a model that is not on the meta device and for a
// speed that is not above 0.
Profile profile_on_meta(const torch::nn::Sequential& model, const Tensors& sample,
                        const NominalDevice& device = {},
                        const std::vector<int64_t>& shared_inputs = {},
                        bool deferred_batch_norm = false);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_FLOPS_H_
