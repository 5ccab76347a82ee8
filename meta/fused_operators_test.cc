// On meta, attention, LSTM, dropout and RMS norm use the kernels of the device that meta stands
// for.

#include <ATen/Context.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "meta/meta_kernels.h"
#include "meta/meta_target.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Setting {
  std::vector<int64_t> query = {2, 8, 128, 64};
  std::vector<int64_t> key = query;
  c10::ScalarType type = at::kHalf;
  std::optional<c10::ScalarType> mask = std::nullopt;
  double dropout = 0;
  bool is_causal = false;
};

at::Tensor on_meta(at::IntArrayRef sizes, c10::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(type).device(at::kMeta)).requires_grad_();
}

// Runs attention forward and backward, and expects that all gradients have the sizes and types of
// their tensors. Returns the name of attention's node in the graph.
std::string node_of(const Setting& setting) {
  const at::Tensor query = on_meta(setting.query, setting.type);
  const at::Tensor key = on_meta(setting.key, setting.type);
  const at::Tensor value = on_meta(setting.key, setting.type);
  std::optional<at::Tensor> mask;
  if (setting.mask) {
    mask = at::empty({setting.query[2], setting.key[2]},
                     at::TensorOptions(*setting.mask).device(at::kMeta));
  }
  const at::Tensor y = at::scaled_dot_product_attention(
      query, key, value, mask, setting.dropout, setting.is_causal, std::nullopt,
      /*enable_gqa=*/setting.key[1] != setting.query[1]);
  EXPECT_EQ(y.sizes(), query.sizes());
  EXPECT_EQ(y.scalar_type(), setting.type);
  y.sum().backward();
  for (const at::Tensor& leaf : {query, key, value}) {
    EXPECT_EQ(leaf.grad().sizes(), leaf.sizes());
    EXPECT_EQ(leaf.grad().scalar_type(), leaf.scalar_type());
  }
  // If the inputs were padded, the node that cuts off the padding comes first, and the node of
  // attention behind it.
  const auto& node = y.grad_fn();
  const std::string name = node->name();
  return name == "SliceBackward0" ? node->next_edge(0).function->name() : name;
}

constexpr char kFlash[] = "ScaledDotProductFlashAttentionBackward0";
constexpr char kEfficient[] = "ScaledDotProductEfficientAttentionBackward0";
constexpr char kFlashForCpu[] = "ScaledDotProductFlashAttentionForCpuBackward0";

class FusedOperators : public ::testing::Test {
 protected:
  void SetUp() override { install_meta_kernels(); }
};

Setting with(void (*change)(Setting&)) {
  Setting setting;
  change(setting);
  return setting;
}

TEST_F(FusedOperators, AttentionOnCuda) {
  const MetaTargetScope target(c10::kCUDA);
  const auto grouped = [](Setting& s) { s.key = {2, 2, 128, 64}; };
  EXPECT_EQ(node_of({}), kFlash);
  EXPECT_EQ(node_of(with([](Setting& s) { s.type = at::kBFloat16; })), kFlash);
  EXPECT_EQ(node_of(with([](Setting& s) { s.dropout = 0.1, s.is_causal = true; })), kFlash);
  EXPECT_EQ(node_of(with([](Setting& s) { s.key = {2, 8, 77, 64}; })), kFlash);
  EXPECT_EQ(node_of(with([](Setting& s) { s.query = s.key = {2, 8, 128, 20}; })), kFlash);
  EXPECT_EQ(node_of(with(grouped)), kFlash);
  // Flash attention is for half precision, without a mask, and for heads of a size of at most 256.
  // With other settings LibTorch uses efficient attention.
  EXPECT_EQ(node_of(with([](Setting& s) { s.type = at::kFloat; })), kEfficient);
  EXPECT_EQ(node_of(with([](Setting& s) { s.type = at::kFloat, s.dropout = 0.1; })), kEfficient);
  for (const c10::ScalarType type : {at::kBool, at::kHalf}) {
    Setting masked;
    masked.mask = type;
    EXPECT_EQ(node_of(masked), kEfficient) << type;
    masked.query = {2, 8, 128, 64};
    masked.key = {2, 8, 77, 64};
    EXPECT_EQ(node_of(masked), kEfficient) << type;
  }
  EXPECT_EQ(node_of(with([](Setting& s) { s.query = s.key = {2, 8, 32, 320}; })), kEfficient);
  // These settings allow neither of the two fused kernels.
  for (Setting setting : {with([](Setting& s) { s.type = at::kDouble; }), with([](Setting& s) {
                            s.type = at::kFloat;
                            s.query = s.key = {2, 8, 128, 30};
                          }),
                          with([](Setting& s) {
                            s.type = at::kFloat;
                            s.key = {2, 2, 128, 64};
                          })}) {
    EXPECT_THAT(node_of(setting), Not(HasSubstr("ScaledDotProduct")));
  }
}

TEST_F(FusedOperators, AttentionOnTheCpu) {
  for (const c10::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Setting setting;
    setting.type = type;
    EXPECT_EQ(node_of(setting), kFlashForCpu) << type;
    setting.is_causal = true;
    EXPECT_EQ(node_of(setting), kFlashForCpu) << type;
  }
  Setting setting;
  setting.type = at::kFloat;
  for (const c10::ScalarType type : {at::kBool, at::kFloat}) {
    setting.mask = type;
    EXPECT_EQ(node_of(setting), kFlashForCpu) << type;
  }
  setting.mask.reset();
  setting.dropout = 0.1;
  EXPECT_THAT(node_of(setting), Not(HasSubstr("ScaledDotProduct")));
  setting.dropout = 0;
  setting.key = {2, 2, 128, 64};
  EXPECT_EQ(node_of(setting), kFlashForCpu) << "grouped";
}

TEST_F(FusedOperators, FollowTheSwitchesOfLibTorch) {
  at::Context& context = at::globalContext();
  const MetaTargetScope target(c10::kCUDA);
  context.setSDPUseFlash(false);
  EXPECT_EQ(node_of({}), kEfficient);
  context.setSDPUseMemEfficient(false);
  EXPECT_THAT(node_of({}), Not(HasSubstr("ScaledDotProduct")));
  context.setSDPUseFlash(true);
  context.setSDPUseMemEfficient(true);
}

TEST_F(FusedOperators, DropoutKeepsBytesOnCuda) {
  const auto node = [] { return at::dropout(on_meta({4, 4}, at::kFloat), 0.5, true).grad_fn(); };
  EXPECT_EQ(node()->name(), "MulBackward0");
  const MetaTargetScope target(c10::kCUDA);
  EXPECT_EQ(node()->name(), "NativeDropoutBackward0");
  at::dropout(on_meta({4, 4}, at::kFloat), 0.5, true).sum().backward();
}

TEST_F(FusedOperators, LstmIsOneDnnsOnTheCpu) {
  const auto node = [](int64_t hidden, int64_t projected) {
    std::vector<at::Tensor> weights = {on_meta({4 * hidden, 3}, at::kFloat),
                                       on_meta({4 * hidden, projected}, at::kFloat)};
    if (projected != hidden) weights.push_back(on_meta({projected, hidden}, at::kFloat));
    const at::Tensor h = on_meta({1, 2, projected}, at::kFloat);
    const at::Tensor c = on_meta({1, 2, hidden}, at::kFloat);
    const auto [y, hy, cy] = at::lstm(on_meta({5, 2, 3}, at::kFloat), {h, c}, weights,
                                      /*has_biases=*/false, 1, 0, true, false, false);
    (y.sum() + hy.sum() + cy.sum()).backward();
    return y.grad_fn()->name();
  };
  if (!at::Context::hasMKLDNN()) GTEST_SKIP() << "this LibTorch has no oneDNN";
  EXPECT_EQ(node(4, 4), "MkldnnRnnLayerBackward0");
  EXPECT_NE(node(4, 2), "MkldnnRnnLayerBackward0");
  const MetaTargetScope target(c10::kCUDA);
  EXPECT_NE(node(4, 4), "MkldnnRnnLayerBackward0");
}

// On CUDA an RMS norm is one kernel, if its weight has the type of the input. A norm that is
// composed of other operators would also keep its result before the weight is applied.
TEST_F(FusedOperators, RmsNormIsOneKernelOnCuda) {
  const auto node = [](c10::ScalarType type, c10::ScalarType weight_type, bool has_weight = true) {
    const at::Tensor x = on_meta({3, 4, 5}, type), weight = on_meta({4, 5}, weight_type);
    const at::Tensor y = has_weight ? at::rms_norm(x, {4, 5}, weight) : at::rms_norm(x, {4, 5});
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(x.grad().scalar_type(), type);
    if (has_weight) {
      EXPECT_EQ(weight.grad().sizes(), weight.sizes());
      EXPECT_EQ(weight.grad().scalar_type(), weight_type);
    }
    return y.grad_fn()->name();
  };
  constexpr char kFused[] = "FusedRmsNormBackward0";
  EXPECT_NE(node(at::kFloat, at::kFloat), kFused);
  const MetaTargetScope target(c10::kCUDA);
  EXPECT_EQ(node(at::kFloat, at::kFloat), kFused);
  EXPECT_EQ(node(at::kBFloat16, at::kBFloat16), kFused);
  EXPECT_EQ(node(at::kFloat, at::kFloat, /*has_weight=*/false), kFused);
  EXPECT_NE(node(at::kBFloat16, at::kFloat), kFused);
  EXPECT_THROW(at::rms_norm(on_meta({3, 4}, at::kFloat), {4}, on_meta({3}, at::kFloat)),
               c10::Error);
}

TEST_F(FusedOperators, RunWithoutAutograd) {
  const c10::InferenceMode inference;
  for (const c10::DeviceType type : {c10::kCPU, c10::kCUDA}) {
    const MetaTargetScope target(type);
    const at::Tensor x = at::empty({2, 4, 32, 16}, at::TensorOptions(at::kMeta));
    EXPECT_EQ(at::scaled_dot_product_attention(x, x, x).sizes(), x.sizes());
    EXPECT_EQ(at::dropout(x, 0.5, true).sizes(), x.sizes());
    EXPECT_EQ(at::rms_norm(x, {16}).sizes(), x.sizes());
  }
}

TEST(MetaTarget, IsTheCpuUnlessAScopeSaysOtherwise) {
  EXPECT_EQ(meta_target(), c10::kCPU);
  {
    const MetaTargetScope cuda(c10::kCUDA);
    EXPECT_EQ(meta_target(), c10::kCUDA);
    const MetaTargetScope cpu(c10::kCPU);
    EXPECT_EQ(meta_target(), c10::kCPU);
  }
  EXPECT_EQ(meta_target(), c10::kCPU);
  EXPECT_THROW(MetaTargetScope(c10::kMPS), c10::ValueError);
}

}  // namespace
}  // namespace gpipe
