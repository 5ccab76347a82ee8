#include "meta/meta_autocast.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformerlayer.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/testing/autocast_scope.h"
#include "meta/meta_kernels.h"
#include "meta/testing/same_on_meta.h"

namespace gpipe {
namespace {

using testing::AutocastScope;
using ::testing::ElementsAre;
using testing::Trial;
namespace nn = torch::nn;

at::Tensor on_meta(at::IntArrayRef sizes, c10::ScalarType type = at::kFloat) {
  return at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(type));
}

// Operators of each of LibTorch's lists (lower precision, single precision, promotion) cast on meta
// as on the CPU. A weight is cast when it is used, and gets a gradient of its own type.
TEST(MetaAutocast, CastsWhatItCastsOnTheCpu) {
  install_meta_kernels();
  const std::vector<testing::Case> cases = {
      {"mm",
       [](Trial& t) {
         return std::vector{at::mm(t.leaf({3, 4}), t.leaf({4, 5}))};
       }},
      {"bmm, matmul",
       [](Trial& t) {
         return std::vector{at::bmm(t.leaf({2, 3, 4}), t.leaf({2, 4, 5})),
                            at::matmul(t.leaf({6, 3, 4}), t.leaf({4, 5}))};
       }},
      {"linear",
       [](Trial& t) {
         return std::vector{at::linear(t.leaf({3, 4}), t.leaf({5, 4}), t.leaf({5}))};
       }},
      {"a weight used twice",
       [](Trial& t) {
         const at::Tensor weight = t.leaf({4, 4});
         return std::vector{at::linear(at::linear(t.leaf({3, 4}), weight), weight)};
       }},
      {"double is left alone",
       [](Trial& t) {
         return std::vector{at::mm(t.leaf({3, 4}, at::kDouble), t.leaf({4, 5}, at::kDouble))};
       }},
      {"float32 operators on the outputs of others",
       [](Trial& t) {
         const at::Tensor y = at::mm(t.leaf({3, 4}), t.leaf({4, 5}));
         return std::vector{at::mse_loss(y, t.data({3, 5})), at::prod(y), at::cdist(y, y)};
       }},
      {"neither",
       [](Trial& t) {
         const at::Tensor y = at::mm(t.leaf({3, 4}), t.leaf({4, 5}));
         return std::vector{y.relu(), at::softmax(y, -1), at::layer_norm(y, {5}), at::exp(y) + 1};
       }},
      {"promoting operators",
       [](Trial& t) {
         const at::Tensor y = at::mm(t.leaf({3, 4}), t.leaf({4, 5}));
         return std::vector{at::cat({y, t.leaf({3, 5})}), at::cat({y, y}),
                            at::stack({y, t.leaf({3, 5})})};
       }},
      {"types given",
       [](Trial& t) {
         const at::Tensor y = at::mm(t.leaf({3, 4}), t.leaf({4, 5}));
         return std::vector{at::softmax(y, -1, at::kFloat), at::sum(y, at::kFloat)};
       }},
      {"convolution and linear layers",
       [](Trial& t) {
         auto model = t.module(
             [] { return nn::Sequential(nn::Conv2d(3, 4, 3), nn::ReLU(), nn::Conv2d(4, 2, 3)); });
         return std::vector{model->forward(t.leaf({2, 3, 8, 8}))};
       }},
      {"attention",
       [](Trial& t) {
         const auto one = [&] { return t.leaf({2, 4, 16, 8}); };
         return std::vector{at::scaled_dot_product_attention(one(), one(), one())};
       }},
      {"a transformer's layer",
       [](Trial& t) {
         auto model = t.module([] {
           return nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dropout(0));
         });
         return std::vector{model->forward(t.leaf({5, 2, 8}))};
       }},
  };
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    const MetaAutocastScope scope(c10::kCPU);
    const AutocastScope autocast(c10::kCPU, type, /*cache=*/false);
    testing::expect_same_on_meta(cases);
  }
}

TEST(MetaAutocast, TakesTheListsOfItsTypeOfDevices) {
  const at::Tensor x = on_meta({4, 4});
  const at::Tensor half = on_meta({4, 4}, at::kHalf);
  const MetaAutocastScope scope(c10::kCUDA);
  const AutocastScope on_cuda(c10::kCUDA, at::kHalf, /*cache=*/false);
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kHalf);
  EXPECT_EQ(at::softmax(half, -1).scalar_type(), at::kFloat) << "CUDA's list, not the CPU's";
  EXPECT_EQ(at::norm(half, 2).scalar_type(), at::kFloat)
      << "autocast adds a dtype to the arguments";
  EXPECT_EQ(at::addcmul(half, half, x).scalar_type(), at::kFloat);
  EXPECT_THROW(at::binary_cross_entropy(half, half), c10::Error)
      << "autocast refuses this operator";
  {
    const MetaAutocastScope other(c10::kCPU);
    EXPECT_EQ(MetaAutocastScope::type(), c10::kCPU);
    EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat) << "the CPU's autocast is not enabled";
    const AutocastScope on_cpu(c10::kCPU, at::kBFloat16, /*cache=*/false);
    EXPECT_EQ(at::mm(x, x).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::softmax(half, -1).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kHalf);
}

TEST(MetaAutocast, HoldsInItsScopeWhereAutocastIsEnabled) {
  const at::Tensor x = on_meta({4, 4});
  const at::Tensor real = at::ones({4, 4});
  const AutocastScope autocast(c10::kCPU, at::kBFloat16, /*cache=*/false);
  EXPECT_EQ(MetaAutocastScope::type(), std::nullopt);
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat);
  {
    const MetaAutocastScope scope(c10::kCPU);
    EXPECT_EQ(at::mm(x, x).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::mm(real, real).scalar_type(), at::kBFloat16)
        << "tensors with values are cast as before";
    {
      at::autocast::set_autocast_enabled(c10::kCPU, false);
      EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat);
      at::autocast::set_autocast_enabled(c10::kCPU, true);
    }
    std::thread([&] { EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat); }).join();
  }
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat);
}

std::vector<std::string>& names() {
  static auto* const seen = new std::vector<std::string>;
  return *seen;
}

// Code that counts operators (balance/costs/flops.cc) must see each operator as often as on the
// CPU.
TEST(MetaAutocast, WatchersSeeTheOperatorsThatTheySeeOnTheCpu) {
  const auto seen = [](c10::Device device) {
    const at::Tensor x = at::ones({4, 4}, at::TensorOptions().device(device));
    names().clear();
    const at::CallbackHandle handle =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
                                     names().emplace_back(call.name());
                                     return std::unique_ptr<at::ObserverContext>();
                                   }).scopes({at::RecordScope::FUNCTION}));
    (void)at::cat({at::mm(x, x), x});
    at::removeCallback(handle);
    return names();
  };
  const MetaAutocastScope scope(c10::kCPU);
  const AutocastScope autocast(c10::kCPU, at::kBFloat16, /*cache=*/false);
  const std::vector<std::string> on_cpu = seen(c10::kCPU);
  EXPECT_EQ(on_cpu.front(), "aten::mm");
  std::vector<std::string> on_meta = seen(c10::kMeta);
  // On the CPU a cast is made of smaller operators, which need not be the same on meta, so they are
  // left out.
  const auto without_details = [](std::vector<std::string> all) {
    std::vector<std::string> kept;
    for (const std::string& name : all) {
      if (name == "aten::mm" || name == "aten::cat" || name == "aten::to") kept.push_back(name);
    }
    return kept;
  };
  EXPECT_EQ(without_details(on_meta), without_details(on_cpu));
}

TEST(MetaAutocastErrors, OtherDevices) {
  EXPECT_THROW(MetaAutocastScope{c10::kMPS}, c10::ValueError);
}

}  // namespace
}  // namespace gpipe
