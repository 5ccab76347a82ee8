#include "meta/fused_operators.h"

#include <ATen/Context.h>
#include <ATen/native/layer_norm.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather_backward_native.h>
#include <ATen/ops/index_select_backward_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/value_selecting_reduction_backward_native.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/GradMode.h>
#include <c10/core/SymIntArrayRef.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "meta/meta_target.h"

namespace gpipe::internal {
namespace {

using at::SDPBackend;
using OptionalTensor = std::optional<at::Tensor>;

struct Attention {
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  const OptionalTensor& mask;
  double dropout;
  bool is_causal;
  std::optional<double> scale;
  bool enable_gqa;

  bool all(const std::function<bool(const at::Tensor&)>& holds) const {
    return holds(query) && holds(key) && holds(value);
  }
  bool wants_grad() const {
    return at::GradMode::is_enabled() &&
           (query.requires_grad() || key.requires_grad() || value.requires_grad());
  }
};

bool has_unit_stride(const at::Tensor& x) { return x.stride(-1) == 1; }

// Whether the inputs meet the requirements for dense tensors that CUDA's two fused kernels have in
// common.
bool may_be_fused_on_cuda(const Attention& a) {
  return a.all(
             [](const at::Tensor& x) { return x.dim() == 4 && x.size(0) > 0 && x.size(2) > 0; }) &&
         a.key.size(2) == a.value.size(2) && a.query.size(0) == a.key.size(0) &&
         a.query.size(0) == a.value.size(0) && a.query.size(-1) == a.key.size(-1) &&
         a.all([&](const at::Tensor& x) { return x.scalar_type() == a.query.scalar_type(); });
}

// The backend that LibTorch chooses on GPUs since the A100, in its default order.
SDPBackend choice_on_cuda(const Attention& a) {
  const at::Context& context = at::globalContext();
  if (!may_be_fused_on_cuda(a)) return SDPBackend::math;
  const c10::ScalarType type = a.query.scalar_type();
  const bool is_half = type == at::kHalf || type == at::kBFloat16;
  const int64_t heads = a.query.size(1), kv_heads = a.key.size(1), dim = a.query.size(-1);
  const bool same_heads = heads == kv_heads && heads == a.value.size(1);
  const bool grouped = a.enable_gqa && kv_heads == a.value.size(1) && heads % kv_heads == 0;
  const bool unit_strides =
      a.all([](const at::Tensor& x) { return x.size(-1) == 1 || has_unit_stride(x); });
  if (context.userEnabledFlashSDP() && is_half && dim <= 256 && a.value.size(-1) == dim &&
      !a.mask && (same_heads || grouped) && unit_strides &&
      (!a.is_causal || a.query.size(2) == a.key.size(2))) {
    return SDPBackend::flash_attention;
  }
  // The memory-efficient kernel loads 16 bytes at a time, so rows must be multiples of 16 bytes.
  const int64_t alignment = is_half ? 8 : 4;
  if (context.userEnabledMemEfficientSDP() && (is_half || type == at::kFloat) && same_heads &&
      dim % alignment == 0 && a.value.size(-1) % alignment == 0 && a.all(has_unit_stride)) {
    return SDPBackend::efficient_attention;
  }
  return SDPBackend::math;
}

// The mask as numbers that are added to the scores, also if it was given as booleans.
OptionalTensor additive(const OptionalTensor& mask, c10::ScalarType type) {
  if (!mask || !mask->defined() || mask->scalar_type() != at::kBool) return mask;
  return at::zeros_like(*mask, mask->options().dtype(type));
}

at::Tensor flash_on_cuda(const Attention& a) {
  const int64_t dim = a.query.size(-1);
  const int64_t missing = (8 - dim % 8) % 8;
  const auto padded = [&](const at::Tensor& x) {
    return missing == 0 ? x : at::constant_pad_nd(x, {0, missing});
  };
  const at::Tensor output = std::get<0>(at::_scaled_dot_product_flash_attention(
      padded(a.query), padded(a.key), padded(a.value), a.dropout, a.is_causal,
      /*return_debug_mask=*/false, a.scale));
  return missing == 0 ? output : output.narrow(-1, 0, dim);
}

at::Tensor efficient_on_cuda(const Attention& a) {
  OptionalTensor mask = additive(a.mask, a.query.scalar_type());
  if (mask && mask->defined()) {
    // The kernel needs a mask whose rows begin at multiples of eight elements, so the rows are
    // padded.
    const int64_t columns = mask->size(-1), missing = (8 - columns % 8) % 8;
    if (missing > 0) mask = at::constant_pad_nd(*mask, {0, missing}).narrow(-1, 0, columns);
    mask = mask->expand({a.query.size(0), a.query.size(1), a.query.size(2), a.key.size(2)});
  }
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      a.query, a.key, a.value, mask, a.wants_grad(), a.dropout, a.is_causal, a.scale));
}

// The output of the target's fused kernel. Undefined if the target has no fused kernel for these
// inputs and computes attention by products.
at::Tensor fused_attention(const Attention& a) {
  if (meta_target() == c10::kCUDA) {
    switch (choice_on_cuda(a)) {
      case SDPBackend::flash_attention:
        return flash_on_cuda(a);
      case SDPBackend::efficient_attention:
        return efficient_on_cuda(a);
      default:
        return {};
    }
  }
  // The CPU's own choice of a kernel, which does not depend on values.
  const auto choice = static_cast<SDPBackend>(at::native::_fused_sdp_choice_cpp(
      a.query, a.key, a.value, a.mask, a.dropout, a.is_causal, a.scale, a.enable_gqa));
  if (choice != SDPBackend::flash_attention) return {};
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      a.query, a.key, a.value, a.dropout, a.is_causal, additive(a.mask, a.query.scalar_type()),
      a.scale));
}

// Whether LibTorch gives attention of three dimensions a batch of one, and fuses it. It does from
// 2.14 on, which declares normalize_unbatched_input(); the compiler finds that function by its
// argument's type.
template <typename Params>
auto fuses_unbatched(int /*preferred*/)
    -> decltype(normalize_unbatched_input(std::declval<Params>()), true) {
  return true;
}
template <typename Params>
bool fuses_unbatched(int64_t /*otherwise*/) {
  return false;
}

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value, const OptionalTensor& mask,
                                        double dropout, bool is_causal, std::optional<double> scale,
                                        bool enable_gqa) {
  const Attention a{query, key, value, mask, dropout, is_causal, scale, enable_gqa};
  at::Tensor output;
  if (a.all([](const at::Tensor& x) { return x.dim() == 4; })) {
    output = fused_attention(a);
  } else if (fuses_unbatched<sdp::sdp_params>(/*preferred=*/0) &&
             a.all([](const at::Tensor& x) { return x.dim() == 3; })) {
    const at::Tensor q = query.unsqueeze(0), k = key.unsqueeze(0), v = value.unsqueeze(0);
    OptionalTensor m = mask;
    while (m && m->defined() && m->dim() < 4) m = m->unsqueeze(0);
    output = fused_attention({q, k, v, m, dropout, is_causal, scale, enable_gqa});
    if (output.defined()) output = output.squeeze(0);
  }
  if (output.defined()) return output;
  // Computes attention by products. This call also refuses arguments that are not valid.
  return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal,
                                                  scale, enable_gqa);
}

// Runs oneDNN's LSTM layer by layer and direction by direction, as LibTorch's mkldnn_rnn() does.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_of_onednn(
    const at::Tensor& input, at::TensorList hx, at::TensorList parameters, bool has_biases,
    int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  constexpr int64_t kLstm = 2;  // cuDNN's number for LSTM, which LibTorch passes on
  const int64_t directions = bidirectional ? 2 : 1;
  const int64_t per_layer = has_biases ? 4 : 2;
  const int64_t hidden = hx[0].size(2);
  at::Tensor values = (batch_first ? input.transpose(0, 1) : input).contiguous();
  const at::Tensor h = hx[0].contiguous(), c = hx[1].contiguous();
  std::vector<at::Tensor> last_h, last_c;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      const at::TensorList own = parameters.slice(index * per_layer, per_layer);
      const auto bias = [&](int64_t k) {
        return has_biases ? own[k] : at::zeros(own[0].sizes(), own[0].options());
      };
      auto [y, hy, cy, workspace] = at::mkldnn_rnn_layer(
          values, own[0], own[1], bias(2), bias(3), h[index], c[index], direction > 0,
          /*batch_sizes=*/{}, kLstm, hidden, layers, has_biases, bidirectional, batch_first, train);
      outputs.push_back(y);
      last_h.push_back(hy);
      last_c.push_back(cy);
    }
    values = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (dropout != 0 && train && layer < layers - 1) {
      values = at::dropout(values, dropout, /*train=*/true);
    }
  }
  return {batch_first ? values.transpose(0, 1) : values, at::stack(last_h), at::stack(last_c)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input, at::TensorList hx,
                                                    at::TensorList parameters, bool has_biases,
                                                    int64_t layers, double dropout, bool train,
                                                    bool bidirectional, bool batch_first) {
  const bool is_onednns = meta_target() == c10::kCPU && at::Context::hasMKLDNN() &&
                          at::globalContext().userEnabledMkldnn() && hx.size() == 2 &&
                          input.scalar_type() == at::kFloat && input.dim() == 3 &&
                          input.numel() > 0 && hx[0].dim() == 3 && hx[1].dim() == 3 &&
                          hx[0].size(2) == hx[1].size(2);  // oneDNN has no projection
  return is_onednns ? lstm_of_onednn(input, hx, parameters, has_biases, layers, dropout, train,
                                     bidirectional, batch_first)
                    : at::native::lstm(input, hx, parameters, has_biases, layers, dropout, train,
                                       bidirectional, batch_first);
}

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  if (meta_target() == c10::kCUDA && train && p > 0 && p < 1 && input.numel() > 0) {
    return std::get<0>(at::native_dropout(input, p, train));
  }
  return at::native::dropout(input, p, train);
}

at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                    const OptionalTensor& weight, std::optional<double> eps) {
  const c10::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(normalized_shape);
  const at::Tensor scale = weight.value_or(at::Tensor());
  at::native::_check_layer_norm_inputs(input, sizes, scale, scale);
  const c10::MemoryFormat format = input.suggest_memory_format();
  // CUDA's kernel is used only for the types and formats that it takes.
  const bool is_fused = meta_target() == c10::kCUDA && !input.is_complex() &&
                        format != c10::MemoryFormat::ChannelsLast &&
                        format != c10::MemoryFormat::ChannelsLast3d &&
                        (!scale.defined() || scale.scalar_type() == input.scalar_type());
  return std::get<0>(
      is_fused ? at::_fused_rms_norm(input, sizes, weight, eps)
               : at::compositeimplicitautograd::_fused_rms_norm(input, sizes, weight, eps));
}

// For these gradients LibTorch adds into zeros: in place on devices, but into a copy on meta,
// because it takes meta tensors for those of a subclass (isTensorSubclassLike). Without values the
// zeros themselves are the result. A gradient that is differentiated again stays composed of other
// operators.
at::Tensor gather_backward(const at::Tensor& grad, const at::Tensor& self, int64_t dim,
                           const at::Tensor& index, bool sparse_grad) {
  if (at::GradMode::is_enabled() || sparse_grad) {
    return at::native::gather_backward(grad, self, dim, index, sparse_grad);
  }
  return at::zeros_symint(self.sym_sizes(), grad.options());
}

at::Tensor index_select_backward(const at::Tensor& grad, c10::SymIntArrayRef self_sizes,
                                 int64_t dim, const at::Tensor& index) {
  if (at::GradMode::is_enabled()) {
    return at::native::index_select_backward_symint(grad, self_sizes, dim, index);
  }
  return at::zeros_symint(self_sizes, grad.options());
}

// The gradient of sort, topk, max, median and other operators that select along a dimension.
at::Tensor value_selecting_reduction_backward(const at::Tensor& grad, int64_t dim,
                                              const at::Tensor& indices, c10::SymIntArrayRef sizes,
                                              bool keepdim) {
  if (at::GradMode::is_enabled()) {
    return at::native::value_selecting_reduction_backward_symint(grad, dim, indices, sizes,
                                                                 keepdim);
  }
  return at::zeros_symint(sizes, grad.options());
}

}  // namespace

void install_fused_operators() {
  // The operators are registered both with autograd and without: if a backend has a kernel of its
  // own, LibTorch no longer composes the operator of other operators for autograd.
  //
  // The libraries are never unregistered, because threads may outlive static destruction.
  static auto* const libraries = new std::vector<std::unique_ptr<torch::Library>>;
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradMeta, c10::DispatchKey::Meta}) {
    torch::Library& library = *libraries->emplace_back(
        std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
    library.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
    library.impl("lstm.input", &lstm);
    library.impl("dropout", &dropout);
    library.impl("rms_norm", &rms_norm);
    library.impl("gather_backward", &gather_backward);
    library.impl("index_select_backward", &index_select_backward);
    library.impl("value_selecting_reduction_backward", &value_selecting_reduction_backward);
  }
}

}  // namespace gpipe::internal
