#include "balance/memory/compared_operators.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <vector>

namespace gpipe::balance {
namespace {

// The names of the operators without "aten::". The test memory_plan_test writes them;
// operator_memory_test.cc says how.
constexpr char kCompared[] = R"(
_conj _index_put_impl_ _log_softmax_backward_data _pad_enum _prelu_kernel_backward
_scaled_dot_product_flash_attention_for_cpu_backward _softmax_backward_data abs adaptive_avg_pool2d
adaptive_max_pool2d adaptive_max_pool2d_backward add add_ addcdiv addcdiv_ addcmul addcmul_ addmm
affine_grid_generator alpha_dropout amax amin arange argmax argsort as_strided atan avg_pool2d
avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm batch_norm bernoulli
binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits bitwise_and bmm
broadcast_tensors cat cdist celu channel_shuffle chunk clamp clamp_max clamp_min clone col2im
constant_pad_nd contiguous conv2d convolution_backward copy_ cos cosine_similarity
cross_entropy_loss cummax cummaxmin_backward cumprod cumprod_backward cumsum detach diag_embed
diagonal diagonal_backward digamma div div_ dropout einsum elu elu_backward embedding
embedding_backward empty empty_like eq erf exp expand expand_as expm1 eye feature_dropout fill_
flatten flip floor full full_like gather gather_backward ge gelu gelu_backward glu glu_backward
grid_sampler grid_sampler_2d_backward group_norm gru gt hardshrink hardshrink_backward hardsigmoid
hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward hinge_embedding_loss
huber_loss huber_loss_backward im2col index index_add index_put index_select index_select_backward
instance_norm inverse isfinite item kl_div kthvalue l1_loss layer_norm le leaky_relu
leaky_relu_backward lerp lgamma linalg_lu_solve linalg_solve linalg_vector_norm linear linspace log
log1p log2 log_sigmoid log_sigmoid_backward log_softmax logcumsumexp logical_and logical_and_
logical_not logical_or logsumexp lstm lt mH mT masked_fill masked_fill_ matmul max max_pool2d
max_pool2d_with_indices_backward maximum mean median min minimum mish mish_backward
mkldnn_rnn_layer_backward mm movedim mse_loss mse_loss_backward mul mul_ nan_to_num narrow
native_batch_norm_backward native_group_norm_backward native_layer_norm_backward ne neg neg_
new_empty_strided new_full new_ones new_zeros nll_loss_backward nll_loss_nd norm one_hot ones
ones_like outer permute pixel_shuffle pixel_unshuffle poisson_nll_loss pow prelu prod quantile
rand_like randn_like randperm reciprocal reflection_pad1d_backward relu relu6 relu_ remainder
repeat repeat_interleave reshape resolve_conj rms_norm roll round rrelu rrelu_with_noise_backward
rsqrt scalar_tensor scaled_dot_product_attention scatter scatter_add select select_backward selu
sgn sigmoid sigmoid_backward sign silu silu_backward sin slice slice_backward smooth_l1_loss
smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softmax softplus
softplus_backward softshrink softshrink_backward sort split split_with_sizes sqrt square squeeze
stack std sub sub_ sum swapaxes t tanh tanh_backward threshold threshold_backward tile to topk
transpose tril triplet_margin_loss triu unbind unflatten unsqueeze upsample_bilinear2d
upsample_bilinear2d_backward upsample_nearest2d upsample_nearest2d_backward
value_selecting_reduction_backward var view view_as_complex view_as_real where zeros zeros_like
)";

}  // namespace

const std::set<std::string>& compared_operators() {
  static const auto* const names = [] {
    auto* const all = new std::set<std::string>;
    for (const absl::string_view name :
         absl::StrSplit(kCompared, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
      all->insert(absl::StrCat("aten::", name));
    }
    return all;
  }();
  return *names;
}

std::optional<Uncertainty> never_compared(const std::set<std::string>& calls,
                                          c10::DeviceType device) {
  const auto is_new = [&](const std::string& name) {
    return calls.count(name) > 0 && compared_operators().count(name) == 0 &&
           uncertainties({name}, device).empty();
  };
  std::vector<std::string> names;
  for (const std::string& name : calls) {
    const std::string forward(absl::StripSuffix(name, "_backward"));
    if (is_new(name) && (forward == name || !is_new(forward))) names.push_back(name);
  }
  if (names.empty()) return std::nullopt;
  return Uncertainty{absl::StrJoin(names, ", "), std::nullopt, "never compared with a real step"};
}

}  // namespace gpipe::balance
