#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "meta/kernel.h"
#include "meta/meta_target.h"

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

// A tensor of statistics. They are kept in the type in which the kernel computes.
at::Tensor statistics(const at::Tensor& x, at::IntArrayRef sizes) {
  return made_like(x, sizes, at::toOpMathType(x.scalar_type()));
}

Tensors batch_norm(const at::Tensor& input, bool training) {
  // In evaluation the running statistics are all that backward needs.
  const int64_t kept = training ? input.size(1) : 0;
  return {same_as(input, input.suggest_memory_format()), statistics(input, {kept}),
          statistics(input, {kept})};
}

// A gradient of these sizes, with the type of `parameter`, or of `input` if that is undefined.
at::Tensor parameter_grad(const at::Tensor& parameter, const at::Tensor& input,
                          at::IntArrayRef sizes) {
  return made_like(parameter.defined() ? parameter : input, sizes);
}

Tensors batch_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor("input"), weight = in.tensor("weight");
  Tensors grads(3);
  // The CPU's kernel makes this gradient twice if it gets tensors without gaps in one format.
  at::Tensor first;
  const c10::MemoryFormat format = input.suggest_memory_format();
  const at::Tensor output_grad = in.tensor("grad_out");
  if (in.wants(0) && meta_target() == c10::kCPU && input.is_contiguous(format) &&
      output_grad.is_contiguous(format)) {
    first = same_as(input, format);
  }
  if (in.wants(0)) grads[0] = same_as(input, input.suggest_memory_format());
  for (const int64_t k : {1, 2}) {
    if (in.wants(k)) grads[k] = parameter_grad(weight, input, {input.size(1)});
  }
  return grads;
}

// A number for each row that a layer norm or an RMS norm scales.
at::Tensor row_statistics(const Arguments& in) {
  const at::Tensor input = in.tensor("input");
  std::vector<int64_t> kept = input.sizes().vec();
  const size_t normalized = in.integers("normalized_shape").size();
  std::fill(kept.end() - static_cast<int64_t>(normalized), kept.end(), 1);
  return statistics(input, kept);
}

Tensors layer_norm(const Arguments& in) {
  return {same_as(in.tensor("input"), c10::MemoryFormat::Contiguous), row_statistics(in),
          row_statistics(in)};
}

Tensors rms_norm(const Arguments& in) {
  return {same_as(in.tensor("input"), c10::MemoryFormat::Contiguous), row_statistics(in)};
}

Tensors rms_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor("input");
  Tensors grads(2);
  if (in.wants(0)) grads[0] = same_as(input, c10::MemoryFormat::Contiguous);
  if (in.wants(1)) {
    grads[1] = parameter_grad(in.tensor("weight"), input, in.integers("normalized_shape"));
  }
  return grads;
}

Tensors layer_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor("input");
  const std::vector<int64_t> sizes = in.integers("normalized_shape");
  Tensors grads(3);
  if (in.wants(0)) grads[0] = same_as(input, c10::MemoryFormat::Contiguous);
  if (in.wants(1)) grads[1] = parameter_grad(in.tensor("weight"), input, sizes);
  if (in.wants(2)) grads[2] = parameter_grad(in.tensor("bias"), input, sizes);
  // The CPU's kernel has sums of both parameters' gradients for each thread while it runs.
  at::Tensor sums;
  if (meta_target() == c10::kCPU && (in.wants(1) || in.wants(2))) {
    sums = made_like(input, {2, at::get_num_threads(), c10::multiply_integers(sizes)});
  }
  return grads;
}

// Whether group norm's kernels have numbers for each row and channel. On CUDA they have none where
// a channel is one value, as in an input of [rows, channels].
bool has_channel_sums(const Arguments& in) {
  return meta_target() == c10::kCPU || in.integer("HxW") != 1;
}

Tensors group_norm(const Arguments& in) {
  const at::Tensor input = in.tensor("input");
  const std::vector<int64_t> kept = {in.integer("N"), in.integer("group")};
  // The kernel's own tensors while it runs.
  Tensors factors;
  const bool scales = in.tensor("weight").defined() || in.tensor("bias").defined();
  for (int k = 0; k < 2 && meta_target() == c10::kCUDA && scales && has_channel_sums(in); ++k) {
    factors.push_back(statistics(input, {in.integer("N"), in.integer("C")}));
  }
  return {same_as(input, input.suggest_memory_format()), statistics(input, kept),
          statistics(input, kept)};
}

Tensors group_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor("input"), weight = in.tensor("weight");
  const int64_t rows = in.integer("N"), channels = in.integer("C");
  Tensors grads(3);
  if (in.wants(0)) grads[0] = same_as(input, input.suggest_memory_format());
  for (const int64_t k : {1, 2}) {
    if (in.wants(k)) grads[k] = parameter_grad(weight, input, {channels});
  }
  // The kernel's own tensors while it runs, whichever gradients are wanted.
  Tensors sums;
  const auto add = [&](int64_t columns) { sums.push_back(statistics(input, {rows, columns})); };
  for (int k = 0; k < 2 && has_channel_sums(in); ++k) add(channels);
  if (meta_target() == c10::kCUDA && in.wants(0)) {
    for (int k = 0; k < 2; ++k) add(in.integer("group"));
    if (has_channel_sums(in) && weight.defined()) add(channels);
  }
  return grads;
}

Tensors batch_norm_of_arguments(const Arguments& in) {
  return batch_norm(in.tensor("input"), in.flag("training"));
}

}  // namespace

std::vector<MetaKernel> norm_kernels() {
  return {
      {"native_batch_norm", batch_norm_of_arguments},
      {"_native_batch_norm_legit", batch_norm_of_arguments},
      {"_native_batch_norm_legit.no_stats", batch_norm_of_arguments},
      {"native_batch_norm_backward", batch_norm_backward},
      // Without kernels, LibTorch makes these two of batch norms, with temporary tensors.
      {"native_layer_norm", layer_norm},
      {"native_group_norm", group_norm},
      {"native_layer_norm_backward", layer_norm_backward},
      {"native_group_norm_backward", group_norm_backward},
      // CUDA's; elsewhere LibTorch composes RMS norms of other operators (fused_operators.cc).
      {"_fused_rms_norm", rms_norm},
      {"_fused_rms_norm_backward", rms_norm_backward},
  };
}

}  // namespace gpipe::internal
