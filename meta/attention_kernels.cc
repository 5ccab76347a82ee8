#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "meta/kernel.h"

// Kernels of fused attention. It does not keep the matrix of attention weights, but one number for
// each row.

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

int64_t rounded_up(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// A tensor of sizes (batch, heads, rows, dim) that lies in memory as (batch, rows, heads, dim).
at::Tensor rows_before_heads(const at::Tensor& x, int64_t dim) {
  return made_like(x, {x.size(0), x.size(2), x.size(1), dim}).transpose(1, 2);
}
at::Tensor rows_before_heads(const at::Tensor& x) { return rows_before_heads(x, x.size(3)); }

// The scratch memory of LibTorch's attention kernels on the CPU. Each thread has `copies` blocks of
// attention weights, and `more_per_row` numbers for each row of a block. LibTorch chooses a block's
// rows by the number of rows of the query.
at::Tensor blocks_of_threads(const at::Tensor& query, const at::Tensor& key, int64_t copies,
                             int64_t more_per_row) {
  const int64_t all = query.size(2);
  const int64_t rows = std::min<int64_t>(all, all >= 768 ? 256 : all >= 192 ? 64 : 32);
  const int64_t columns = std::min<int64_t>(key.size(2), 512);
  return made_like(query, {at::get_num_threads(), rows * (copies * columns + more_per_row)},
                   at::toOpMathType(query.scalar_type()));
}

Tensors flash_for_cpu(const Arguments& in) {
  const at::Tensor query = in.tensor("query");
  const at::Tensor blocks = blocks_of_threads(query, in.tensor("key"), 1, query.size(3) + 2);
  const at::Tensor sums = made_like(query, {query.size(0), query.size(2), query.size(1)},
                                    at::toOpMathType(query.scalar_type()));
  return {same_as(query), sums.transpose(1, 2)};
}

Tensors flash_for_cpu_backward(const Arguments& in) {
  const at::Tensor query = in.tensor("query"), key = in.tensor("key");
  const at::Tensor blocks = blocks_of_threads(query, key, 2, 0);
  return {rows_before_heads(query), rows_before_heads(key), rows_before_heads(in.tensor("value"))};
}

Tensors flash_on_cuda_backward(const Arguments& in) {
  const at::Tensor query = in.tensor("query"), key = in.tensor("key"), value = in.tensor("value");
  Tensors grads = {same_as(query), same_as(key), same_as(value)};
  // These tensors stand for scratch memory of CUDA's kernel: the query's gradient is added up in
  // single precision, and grouped heads have their gradients one by one.
  const int64_t rows = rounded_up(query.size(2), 128);
  const int64_t dim = rounded_up(query.size(3), query.size(3) <= 128 ? 32 : 64);
  const at::Tensor sums = made_like(query, {query.size(0), rows, query.size(1), dim}, at::kFloat);
  const at::Tensor products = made_like(query, {query.size(0), query.size(1), rows}, at::kFloat);
  Tensors expanded;
  if (key.size(1) != query.size(1)) {
    for (int k = 0; k < 2; ++k) {
      expanded.push_back(made_like(key, {key.size(0), key.size(2), query.size(1), query.size(3)}));
    }
  }
  return grads;
}

Tensors efficient(const Arguments& in) {
  const at::Tensor query = in.tensor("query");
  const int64_t rows = in.flag("compute_log_sumexp") ? rounded_up(query.size(2), 32) : 0;
  return {rows_before_heads(query, in.tensor("value").size(3)),
          made_like(query, {query.size(0), query.size(1), rows}, at::kFloat),
          made_like(query, {}, at::kLong), made_like(query, {}, at::kLong)};
}

Tensors efficient_backward(const Arguments& in) {
  const at::Tensor query = in.tensor("query");
  const at::Tensor bias = in.tensor("attn_bias");
  Tensors grads = {rows_before_heads(query), rows_before_heads(in.tensor("key")),
                   rows_before_heads(in.tensor("value")), at::Tensor()};
  if (bias.defined() && in["grad_input_mask"].toBoolList().get(3)) {
    std::vector<int64_t> sizes = bias.sizes().vec();
    sizes.back() = rounded_up(sizes.back(), 16);
    grads[3] = made_like(bias, sizes).narrow(-1, 0, bias.size(-1));
  }
  // These tensors stand for scratch memory of CUDA's kernel, as in flash_on_cuda_backward().
  const at::Tensor products =
      made_like(query, {query.size(0), query.size(1), query.size(2)}, at::kFloat);
  at::Tensor sums;
  if (query.scalar_type() != at::kFloat) {
    sums = made_like(query,
                     {query.size(0), query.size(1), rounded_up(query.size(2), 64),
                      rounded_up(query.size(3), 32)},
                     at::kFloat);
  }
  return grads;
}

}  // namespace

std::vector<MetaKernel> attention_kernels() {
  return {
      {"_scaled_dot_product_flash_attention_for_cpu", flash_for_cpu},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", flash_for_cpu_backward},
      {"_scaled_dot_product_flash_attention_backward", flash_on_cuda_backward},
      {"_scaled_dot_product_efficient_attention", efficient},
      {"_scaled_dot_product_efficient_attention_backward", efficient_backward},
  };
}

FlashAttention flash_attention_on_cuda(const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& /*value*/, double /*dropout*/,
                                       bool /*is_causal*/, bool /*return_debug_mask*/,
                                       std::optional<double> /*scale*/) {
  return {same_as(query),
          made_like(query, {query.size(0), query.size(1), query.size(2)}, at::kFloat),
          at::Tensor(),
          at::Tensor(),
          query.size(2),
          key.size(2),
          made_like(query, {2}, at::kUInt64),
          made_like(query, {}, at::kUInt64),
          made_like(query, {0})};
}

}  // namespace gpipe::internal
