#include <ATen/WrapDimUtils.h>
#include <c10/util/Exception.h>

#include "meta/kernel.h"

// Kernels of operators that pick elements by their place, including embeddings.

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors index_select(const Arguments& in) {
  const at::Tensor self = in.tensor("self"), index = in.tensor("index");
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select: index must be a vector, got ", index.sizes());
  const int64_t dim = at::maybe_wrap_dim(in.integer("dim"), self.dim());
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[dim] = index.numel();
  return {made_like(self, sizes)};
}

Tensors take(const Arguments& in) {
  return {made_like(in.tensor("self"), in.tensor("index").sizes())};
}

Tensors repeat_interleave(const Arguments& in) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !in["output_size"].isNone(),
      "aten::repeat_interleave.Tensor on meta tensors: how large its result "
      "is depends on values. Give output_size");
  return {made_like(in.tensor("repeats"), {in.integer("output_size")})};
}

Tensors embedding_backward(const Arguments& in) {
  const at::Tensor grad = in.tensor("grad_output");
  return {made_like(grad, {in.integer("num_weights"), grad.size(-1)})};
}

constexpr int64_t kMean = 1, kMax = 2;

// The results are those of the CPU. The second result has the bag of each index, the third the
// sizes of the bags, the fourth the index of each maximum.
Tensors embedding_bag(const Arguments& in) {
  const at::Tensor weight = in.tensor("weight"), indices = in.tensor("indices"),
                   offsets = in.tensor("offsets"), scale = in.tensor("per_sample_weights");
  const int64_t mode = in.integer("mode");
  const int64_t bags = offsets.size(0) - in.flag("include_last_offset");
  // The CPU has a fast path for sums of float rows, which does not keep the bag of each index.
  const bool fast = mode != kMean && mode != kMax &&
                    (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kHalf ||
                     weight.scalar_type() == at::kBFloat16) &&
                    weight.stride(1) == 1 && in.integer("padding_idx") < 0 &&
                    (!scale.defined() || scale.stride(0) == 1);
  at::Tensor maxima =
      mode == kMax ? made_like(offsets, {bags, weight.size(1)}) : made_like(offsets, {bags});
  return {made_like(weight, {bags, weight.size(1)}),
          made_like(offsets, {fast ? 0 : indices.size(0)}), made_like(offsets, {bags}), maxima};
}

Tensors embedding_bag_backward(const Arguments& in) {
  const at::Tensor grad = in.tensor("grad");
  return {made_like(grad, {in.integer("num_weights"), grad.size(1)})};
}

Tensors embedding_bag_backward_or_sparse(const Arguments& in) {
  TORCH_CHECK_NOT_IMPLEMENTED(!in.flag("sparse"), "aten::_embedding_bag_backward on meta tensors: ",
                              "a sparse gradient is as large as the values say. Use sparse(false)");
  return embedding_bag_backward(in);
}

Tensors places(const Arguments& in) {
  const auto type = in.flag("out_int32") ? at::kInt : at::kLong;
  return {made_like(in.tensor("self"), in.tensor("self").sizes(), type)};
}

}  // namespace

std::vector<MetaKernel> index_kernels() {
  return {
      {"index_select", index_select},
      {"take", take},
      like("flip", "self"),
      contiguous_like("roll", "self"),
      {"repeat_interleave.Tensor", repeat_interleave},
      {"unfold_backward",
       [](const Arguments& in) -> Tensors {
         return {made_like(in.tensor("grad_in"), in.integers("input_sizes"))};
       }},
      {"searchsorted.Tensor", places},
      {"bucketize.Tensor", places},
      {"histc",
       [](const Arguments& in) -> Tensors {
         return {made_like(in.tensor("self"), {in.integer("bins")})};
       }},
      {"embedding_dense_backward", embedding_backward},
      {"_embedding_bag", embedding_bag},
      {"_embedding_bag_forward_only", embedding_bag},
      {"_embedding_bag_backward", embedding_bag_backward_or_sparse},
      {"_embedding_bag_dense_backward", embedding_bag_backward},
      {"_embedding_bag_per_sample_weights_backward",
       [](const Arguments& in) -> Tensors {
         return {made_like(in.tensor("grad"), {in.tensor("indices").size(0)})};
       }},
  };
}

}  // namespace gpipe::internal
