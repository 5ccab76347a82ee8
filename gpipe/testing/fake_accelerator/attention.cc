// Fused attention on fake devices, with the dropout of CUDA's: it draws from the default generator
// of its device when it is launched, takes no other generator, and tells its backward the seed. It
// has no header: linking registers it. It computes with the operators of fake devices.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>
#include <tuple>

#include "gpipe/testing/fake_accelerator/generator.h"

namespace gpipe::testing::fake {
namespace {

// The weights of an attention. Forward and backward compute them in the same way.
struct Weights {
  at::Tensor all;      // softmax of the scores
  at::Tensor kept;     // `all` after dropout
  at::Tensor dropout;  // the factors by which dropout multiplies
};

Weights weights_of(const at::Tensor& query, const at::Tensor& key, double p, double scale,
                   int64_t seed) {
  Weights weights;
  weights.all = at::softmax(at::matmul(query, key.transpose(-2, -1)) * scale, -1);
  at::Generator generator = at::make_generator<FakeGenerator>(query.device().index());
  generator.set_current_seed(static_cast<uint64_t>(seed));
  weights.dropout = at::empty(weights.all.sizes(), weights.all.options());
  weights.dropout.bernoulli_(1 - p, generator).div_(1 - p);
  weights.kept = weights.all * weights.dropout;
  return weights;
}

double scale_of(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

// Draws a seed from the device's default generator and moves the generator on, as at::cuda's
// philox_cuda_state() does.
int64_t take_seed(const at::Tensor& query) {
  at::Generator generator = default_generator(query.device().index());
  const std::lock_guard<std::mutex> lock(generator.mutex());
  at::Generator& cpu = static_cast<FakeGenerator*>(generator.unsafeGetGeneratorImpl())->on_cpu();
  return static_cast<int64_t>(at::check_generator<at::CPUGeneratorImpl>(cpu)->random64() >> 1);
}

using Outputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                           at::Tensor, at::Tensor, at::Tensor>;

Outputs attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const std::optional<at::Tensor>& bias, double p, bool is_causal,
                  bool /*return_debug_mask*/, std::optional<double> scale) {
  TORCH_CHECK(!bias.has_value() && !is_causal, "fake devices have no masked attention");
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::DeviceGuard guard(query.device());
  const int64_t seed = p > 0 ? take_seed(query) : 0;
  const Weights weights = weights_of(query, key, p, scale_of(query, scale), seed);
  const at::Tensor none = at::empty({0}, query.options());
  return {at::matmul(weights.kept, value),      none, none, none, query.size(-2), key.size(-2),
          at::empty({}, at::kLong).fill_(seed), none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& /*bias*/, std::array<bool, 4> /*wanted*/, const at::Tensor& /*out*/,
    const at::Tensor& /*logsumexp*/, const at::Tensor& /*cum_seq_q*/,
    const at::Tensor& /*cum_seq_k*/, c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double p,
    bool /*is_causal*/, const at::Tensor& seed, const at::Tensor& /*offset*/,
    std::optional<double> scale) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::DeviceGuard guard(query.device());
  const double factor = scale_of(query, scale);
  const Weights weights = weights_of(query, key, p, factor, seed.item<int64_t>());
  const at::Tensor of_weights = at::matmul(grad, value.transpose(-2, -1)) * weights.dropout;
  const at::Tensor of_scores =
      weights.all * (of_weights - (of_weights * weights.all).sum(-1, /*keepdim=*/true)) * factor;
  return {at::matmul(of_scores, key), at::matmul(of_scores.transpose(-2, -1), query),
          at::matmul(weights.kept.transpose(-2, -1), grad), at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_scaled_dot_product_fused_attention_overrideable", attention);
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
}

}  // namespace
}  // namespace gpipe::testing::fake
