#include <c10/util/Exception.h>

#include "meta/kernel.h"

// LibTorch's convolution sends every device that it does not know to the pair of operators below,
// with one-dimensional convolutions as two-dimensional ones. The kernels below are for meta tensors
// only, because other backends register their kernels under their own keys.

namespace gpipe::internal {
namespace {

// The format of the output, as cuDNN and oneDNN choose it: channels last if either tensor has that
// format.
c10::MemoryFormat format_of(const at::Tensor& input, const at::Tensor& weight) {
  const auto last =
      input.dim() == 5 ? c10::MemoryFormat::ChannelsLast3d : c10::MemoryFormat::ChannelsLast;
  const bool is_last =
      input.suggest_memory_format() == last || weight.suggest_memory_format() == last;
  return is_last ? last : c10::MemoryFormat::Contiguous;
}

std::vector<int64_t> output_sizes(const Arguments& in) {
  const at::Tensor input = in.tensor("input"), weight = in.tensor("weight");
  const int64_t spatial = input.dim() - 2;
  const std::vector<int64_t> stride = in.integers("stride", spatial),
                             padding = in.integers("padding", spatial),
                             dilation = in.integers("dilation", spatial);
  const bool transposed = in.flag("transposed");
  std::vector<int64_t> extra(spatial, 0);
  if (transposed) extra = in.integers("output_padding", spatial, {0});
  std::vector<int64_t> sizes = {
      input.size(0), transposed ? weight.size(1) * in.integer("groups") : weight.size(0)};
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t input_size = input.size(i + 2);
    // The size that the kernel covers, less one.
    const int64_t reach = dilation[i] * (weight.size(i + 2) - 1);
    sizes.push_back(transposed
                        ? (input_size - 1) * stride[i] - 2 * padding[i] + reach + extra[i] + 1
                        : (input_size + 2 * padding[i] - reach - 1) / stride[i] + 1);
    TORCH_CHECK(sizes.back() > 0, "convolution of ", input.sizes(), " with a kernel of ",
                weight.sizes(), " gives dimension ", i + 2, " a size of ", sizes.back());
  }
  return sizes;
}

}  // namespace

std::vector<MetaKernel> convolution_kernels() {
  return {
      {"convolution_overrideable",
       [](const Arguments& in) -> std::vector<at::Tensor> {
         const at::Tensor input = in.tensor("input");
         return {made_like(input, output_sizes(in), format_of(input, in.tensor("weight")))};
       }},
      {"convolution_backward_overrideable",
       [](const Arguments& in) -> std::vector<at::Tensor> {
         const at::Tensor grad = in.tensor("grad_output"), input = in.tensor("input"),
                          weight = in.tensor("weight");
         const c10::MemoryFormat format = format_of(input, weight);
         std::vector<at::Tensor> grads(3);
         if (in.wants(0)) grads[0] = same_as(input, format);
         if (in.wants(1)) grads[1] = same_as(weight, format);
         if (in.wants(2)) grads[2] = made_like(grad, {grad.size(1)});
         return grads;
       }},
  };
}

}  // namespace gpipe::internal
