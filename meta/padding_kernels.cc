#include <c10/util/Exception.h>

#include <tuple>

#include "meta/kernel.h"

// Kernels of operators that move pixels: padding, patches, sampling, shuffling.

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors reflection_pad2d(const Arguments& in) {
  const at::Tensor input = in.tensor("self");
  const std::vector<int64_t> padding = in.integers("padding", 4);
  std::vector<int64_t> sizes = input.sizes().vec();
  const size_t height = sizes.size() - 2, width = sizes.size() - 1;
  for (const auto& [dimension, before, after] : {std::make_tuple(height, padding[2], padding[3]),
                                                 std::make_tuple(width, padding[0], padding[1])}) {
    TORCH_CHECK(before < sizes[dimension] && after < sizes[dimension], "reflection_pad2d: padding ",
                c10::IntArrayRef(padding), " must be less than the size of what it pads, got ",
                input.sizes());
    sizes[dimension] += before + after;
  }
  return {made_like(input, sizes, input.suggest_memory_format())};
}

// The number of places along each dimension of an image of these sizes at which a window of
// `kernel` fits.
int64_t windows(const Arguments& in, at::IntArrayRef image) {
  const std::vector<int64_t> kernel = in.integers("kernel_size", 2),
                             dilation = in.integers("dilation", 2),
                             padding = in.integers("padding", 2), stride = in.integers("stride", 2);
  int64_t all = 1;
  for (size_t i = 0; i < 2; ++i) {
    all *= (image[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
  }
  TORCH_CHECK(all > 0, "im2col: a kernel of ", c10::IntArrayRef(kernel),
              " does not fit into an image of ", image);
  return all;
}

Tensors im2col(const Arguments& in) {
  const at::Tensor input = in.tensor("self");
  const std::vector<int64_t> kernel = in.integers("kernel_size", 2);
  std::vector<int64_t> sizes = input.sizes().vec();
  const int64_t places = windows(in, input.sizes().slice(input.dim() - 2));
  sizes.pop_back();
  sizes.back() = places;
  sizes[sizes.size() - 2] *= kernel[0] * kernel[1];
  return {made_like(input, sizes)};
}

Tensors col2im(const Arguments& in) {
  const at::Tensor input = in.tensor("self");
  const std::vector<int64_t> image = in.integers("output_size", 2),
                             kernel = in.integers("kernel_size", 2);
  TORCH_CHECK(windows(in, image) == input.size(-1), "col2im: ", input.size(-1),
              " windows do not make an image of ", c10::IntArrayRef(image));
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[sizes.size() - 2] /= kernel[0] * kernel[1];
  sizes.back() = image[0];
  sizes.push_back(image[1]);
  return {made_like(input, sizes)};
}

Tensors grid_sampler(const Arguments& in) {
  const at::Tensor input = in.tensor("input"), grid = in.tensor("grid");
  std::vector<int64_t> sizes = {input.size(0), input.size(1)};
  for (int64_t d = 1; d + 1 < grid.dim(); ++d) sizes.push_back(grid.size(d));
  return {made_like(input, sizes)};
}

Tensors grid_sampler_backward(const Arguments& in) {
  Tensors grads(2);
  if (in.wants(0)) grads[0] = same_as(in.tensor("input"), c10::MemoryFormat::Contiguous);
  // The kernels of all devices make the grid's gradient, whether it is wanted or not.
  grads[1] = same_as(in.tensor("grid"), c10::MemoryFormat::Contiguous);
  return grads;
}

}  // namespace

std::vector<MetaKernel> padding_kernels() {
  return {
      {"reflection_pad2d", reflection_pad2d},
      in_format_of("reflection_pad2d_backward", "self"),
      in_format_of("replication_pad2d_backward", "self"),
      in_format_of("replication_pad3d_backward", "self"),
      {"im2col", im2col},
      {"col2im", col2im},
      {"grid_sampler_2d", grid_sampler},
      {"grid_sampler_2d_backward", grid_sampler_backward},
      {"grid_sampler_3d", grid_sampler},
      {"grid_sampler_3d_backward", grid_sampler_backward},
      in_format_of("channel_shuffle", "self"),
  };
}

}  // namespace gpipe::internal
