#include <ATen/native/Pool.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "meta/kernel.h"

// Kernels of pooling. In all inputs channels and space come last; a batch may come before them.

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

// The sizes of `x`, with `last` for its last dimensions.
std::vector<int64_t> with_last(const at::Tensor& x, const std::vector<int64_t>& last) {
  std::vector<int64_t> sizes = x.sizes().vec();
  std::copy(last.begin(), last.end(), sizes.end() - static_cast<int64_t>(last.size()));
  return sizes;
}

Tensors max_pool3d(const Arguments& in) {
  const at::Tensor input = in.tensor("self");
  const std::vector<int64_t> kernel = in.integers("kernel_size", 3),
                             stride = in.integers("stride", 3, kernel),
                             padding = in.integers("padding", 3),
                             dilation = in.integers("dilation", 3);
  std::vector<int64_t> last;
  for (int64_t i = 0; i < 3; ++i) {
    last.push_back(at::native::pooling_output_shape<int64_t>(input.size(input.dim() - 3 + i),
                                                             kernel[i], padding[i], stride[i],
                                                             dilation[i], in.flag("ceil_mode")));
  }
  const std::vector<int64_t> sizes = with_last(input, last);
  at::Tensor output = made_like(input, sizes, input.suggest_memory_format());
  at::Tensor indices = at::empty_like(output, output.options().dtype(at::kLong));
  return {output, indices};
}

// Pooling over the last `count` dimensions, whose sizes the caller gives: adaptive pooling, and max
// pooling undone.
template <int64_t count>
Tensors pool_to_given_size(const Arguments& in) {
  const at::Tensor input = in.tensor("self");
  // In three dimensions the result is contiguous, because no kernel keeps channels last there.
  const auto format = count == 2 ? input.suggest_memory_format() : c10::MemoryFormat::Contiguous;
  return {made_like(input, with_last(input, in.integers("output_size", count)), format)};
}

}  // namespace

std::vector<MetaKernel> pool_kernels() {
  return {
      {"max_pool3d_with_indices", max_pool3d},
      in_format_of("max_pool3d_with_indices_backward", "self"),
      {"_adaptive_avg_pool2d", pool_to_given_size<2>},
      in_format_of("_adaptive_avg_pool2d_backward", "self"),
      {"_adaptive_avg_pool3d", pool_to_given_size<3>},
      contiguous_like("_adaptive_avg_pool3d_backward", "self"),
      contiguous_like("fractional_max_pool3d_backward", "self"),
      {"max_unpool2d", pool_to_given_size<2>},
      {"max_unpool3d", pool_to_given_size<3>},
  };
}

}  // namespace gpipe::internal
