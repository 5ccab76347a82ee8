#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "meta/kernel.h"
#include "meta/meta_target.h"

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

// A tensor of statistics, in the type in which the kernel computes.
at::Tensor statistics(const at::Tensor& x, at::IntArrayRef sizes) {
  return made_like(x, sizes, at::toOpMathType(x.scalar_type()));
}

// A tensor of the statistics that a norm keeps. On the CPU they have the input's type if its
// `parameters` have it, too, or if there are none.
template <typename... Parameters>
at::Tensor kept_statistics(at::IntArrayRef sizes, const at::Tensor& x,
                           const Parameters&... parameters) {
  if (meta_target() != c10::kCPU) return statistics(x, sizes);
  return made_like(x, sizes,
                   at::native::param_scalar_type(x, at::native::is_mixed_type(x, parameters...)));
}

// `running`: the running mean, if the operator has one.
Tensors batch_norm(const Arguments& in, const at::Tensor& running) {
  const at::Tensor input = in.tensor("input"), weight = in.tensor("weight");
  // In evaluation no statistics are kept, because the backward needs only the running statistics.
  const int64_t kept = in.flag("training") ? input.size(1) : 0;
  return {same_as(input, input.suggest_memory_format()),
          kept_statistics({kept}, input, weight, running),
          kept_statistics({kept}, input, weight, running)};
}

// A gradient of these sizes, with the type of `parameter`, or of `input` if `parameter` is
// undefined.
at::Tensor parameter_grad(const at::Tensor& parameter, const at::Tensor& input,
                          at::IntArrayRef sizes) {
  return made_like(parameter.defined() ? parameter : input, sizes);
}

Tensors batch_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor("input"), weight = in.tensor("weight");
  Tensors grads(3);
  // The CPU's kernel for tensors without gaps in one format makes the input's gradient twice.
  at::Tensor first;
  const c10::MemoryFormat format = input.suggest_memory_format();
  const bool one_format = meta_target() == c10::kCPU && input.is_contiguous(format) &&
                          in.tensor("grad_out").is_contiguous(format);
  if (in.wants(0) && one_format) first = same_as(input, format);
  if (in.wants(0)) grads[0] = same_as(input, format);
  const int64_t channels = input.size(1);
  for (const int64_t k : {1, 2}) {
    if (in.wants(k)) grads[k] = parameter_grad(weight, input, {channels});
  }
  // Then, where channels are last, the kernel makes sums for each thread, and copies of tensors of
  // channels in the type in which it computes.
  first.reset();
  at::Tensor sums;
  if (one_format &&
      (format != c10::MemoryFormat::Contiguous || input.numel() == input.size(0) * channels)) {
    const int64_t copies = at::isReducedFloatingType(input.scalar_type()) ? 3 : !weight.defined();
    sums = statistics(input, {2 * at::get_num_threads() + copies, channels});
  }
  return grads;
}

// A number for each row that a layer norm or an RMS norm scales.
at::Tensor row_statistics(const Arguments& in) {
  const at::Tensor input = in.tensor("input");
  std::vector<int64_t> kept = input.sizes().vec();
  const size_t normalized = in.integers("normalized_shape").size();
  std::fill(kept.end() - static_cast<int64_t>(normalized), kept.end(), 1);
  return kept_statistics(kept, input, in.tensor("weight"));
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
  // While it runs, the CPU's kernel has sums of both parameters' gradients for each thread. This
  // tensor stands for them.
  at::Tensor sums;
  if (meta_target() == c10::kCPU && (in.wants(1) || in.wants(2))) {
    sums = made_like(input, {2, at::get_num_threads(), c10::multiply_integers(sizes)});
  }
  return grads;
}

// Whether group norm's kernels keep numbers for each row and channel. On CUDA they do not if a
// channel is one value, as in an input of [rows, channels].
bool has_channel_sums(const Arguments& in) {
  return meta_target() == c10::kCPU || in.integer("HxW") != 1;
}

Tensors group_norm(const Arguments& in) {
  const at::Tensor input = in.tensor("input");
  const std::vector<int64_t> kept = {in.integer("N"), in.integer("group")};
  // These tensors stand for those that CUDA's kernel has only while it runs.
  Tensors factors;
  const bool scales = in.tensor("weight").defined() || in.tensor("bias").defined();
  for (int k = 0; k < 2 && meta_target() == c10::kCUDA && scales && has_channel_sums(in); ++k) {
    factors.push_back(statistics(input, {in.integer("N"), in.integer("C")}));
  }
  const at::Tensor weight = in.tensor("weight");
  return {same_as(input, input.suggest_memory_format()), kept_statistics(kept, input, weight),
          kept_statistics(kept, input, weight)};
}

Tensors group_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor("input"), weight = in.tensor("weight");
  const int64_t rows = in.integer("N"), channels = in.integer("C");
  Tensors grads(3);
  if (in.wants(0)) grads[0] = same_as(input, input.suggest_memory_format());
  for (const int64_t k : {1, 2}) {
    if (in.wants(k)) grads[k] = parameter_grad(weight, input, {channels});
  }
  // These tensors stand for those that the kernel has only while it runs, whichever gradients are
  // wanted.
  Tensors sums;
  const auto add = [&](int64_t columns) { sums.push_back(statistics(input, {rows, columns})); };
  for (int k = 0; k < 2 && has_channel_sums(in); ++k) add(channels);
  if (meta_target() == c10::kCUDA && in.wants(0)) {
    for (int k = 0; k < 2; ++k) add(in.integer("group"));
    if (has_channel_sums(in) && weight.defined()) add(channels);
  }
  return grads;
}

Tensors batch_norm_with_running(const Arguments& in) {
  return batch_norm(in, in.tensor("running_mean"));
}

Tensors batch_norm_alone(const Arguments& in) { return batch_norm(in, {}); }

}  // namespace

std::vector<MetaKernel> norm_kernels() {
  return {
      {"native_batch_norm", batch_norm_with_running},
      {"_native_batch_norm_legit", batch_norm_with_running},
      {"_native_batch_norm_legit.no_stats", batch_norm_alone},
      {"native_batch_norm_backward", batch_norm_backward},
      // Layer norm and group norm have kernels here, because LibTorch would otherwise make them of
      // batch norms, with temporary tensors.
      {"native_layer_norm", layer_norm},
      {"native_group_norm", group_norm},
      {"native_layer_norm_backward", layer_norm_backward},
      {"native_group_norm_backward", group_norm_backward},
      // These two kernels are used only if CUDA is the target. Otherwise LibTorch composes RMS
      // norms of other operators (fused_operators.cc).
      {"_fused_rms_norm", rms_norm},
      {"_fused_rms_norm_backward", rms_norm_backward},
  };
}

}  // namespace gpipe::internal
