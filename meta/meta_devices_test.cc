#include "meta/meta_devices.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <memory>

#include "gpipe/gpipe.h"
#include "meta/meta_scope.h"

namespace gpipe {
namespace {

c10::Device meta(int k) { return {c10::kMeta, static_cast<c10::DeviceIndex>(k)}; }

TEST(MetaDevices, TensorsGoToTheCurrentDevice) {
  install_meta_devices();
  EXPECT_EQ(at::empty({8}, at::TensorOptions().device(at::kMeta)).device(),
            c10::Device(c10::kMeta));
  const c10::DeviceGuard guard(meta(3));
  const at::Tensor x = at::empty({8}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(x.device(), meta(3));
  EXPECT_EQ((x + x).device(), meta(3));
  {
    const c10::DeviceGuard inner(meta(1));
    EXPECT_EQ(x.clone().device(), meta(1));
  }
  EXPECT_EQ(x.clone().device(), meta(3));
}

TEST(MetaDevices, StreamsAndEventsExist) {
  install_meta_devices();
  const c10::impl::VirtualGuardImpl impl(c10::kMeta);
  c10::Event event(c10::kMeta);
  event.record(impl.getStream(meta(2)));
  event.block(impl.getStream(meta(1)));
  EXPECT_TRUE(event.query());
}

// A layer that makes ranges, as models do for positions, masks and one_hot. The ranges must be on
// the layer's meta device.
struct RangesImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::TensorOptions options = x.options().requires_grad(false);
    const at::Tensor n = torch::arange(0, x.size(1), options);
    EXPECT_EQ(n.sizes(), at::IntArrayRef({x.size(1)}));
    EXPECT_EQ(n.device(), x.device());
    EXPECT_EQ(torch::arange(7, options.dtype(at::kLong)).size(0), 7);
    EXPECT_EQ(torch::arange(1, 8, 3, options).size(0), 3);
    EXPECT_EQ(torch::arange(0.0, 1.0, 0.3, options).size(0), 4);
    EXPECT_EQ(torch::linspace(0, 1, 5, options).size(0), 5);
    EXPECT_EQ(torch::logspace(0, 1, 6, 10, options).size(0), 6);
    EXPECT_EQ(torch::range(0, 4, options).size(0), 5);
    return x + n;
  }
};
TORCH_MODULE(Ranges);

TEST(MetaDevices, RangesInALayer) {
  install_meta_devices();
  torch::nn::Sequential model = [] {
    const MetaScope scope;
    return torch::nn::Sequential(torch::nn::Linear(8, 8), Ranges());
  }();
  GPipe pipe(model, GPipeOptions({1, 1}).devices({meta(0), meta(1)}).chunks(2));
  const c10::DeviceGuard guard(meta(0));
  pipe->step({at::empty({4, 8}, at::TensorOptions().device(at::kMeta))}, {},
             [](const Tensors& out, const Tensors&) { return out.at(0).mean(); });
}

// In a process that has meta devices, ranges in a pipeline on the CPU still have their values.
TEST(MetaDevices, RangesHaveTheirValuesElsewhere) {
  install_meta_devices();
  struct PositionsImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      return x + torch::arange(x.size(1)) + torch::linspace(0, 7, 8) +
             torch::range(0, 7, at::TensorOptions()) + torch::logspace(0, 7, 8, 2);
    }
  };
  torch::nn::Sequential model(std::make_shared<PositionsImpl>());
  GPipe pipe(model, GPipeOptions({1}).devices({c10::kCPU}));
  const at::Tensor output = pipe->forward(at::zeros({1, 8}));
  for (int k = 0; k < 8; ++k) EXPECT_FLOAT_EQ(output[0][k].item<float>(), 3 * k + (1 << k));
}

TEST(MetaDevices, APipelineTrainsOnThem) {
  install_meta_devices();
  torch::nn::Sequential model = [] {
    const MetaScope scope;
    return torch::nn::Sequential(torch::nn::Linear(1 << 20, 1 << 20), torch::nn::Tanh(),
                                 torch::nn::Linear(1 << 20, 1 << 10));
  }();
  GPipe pipe(model, GPipeOptions({2, 1}).devices({meta(0), meta(1)}).chunks(4));
  EXPECT_EQ(model->ptr(0)->parameters()[0].device(), meta(0));
  EXPECT_EQ(model->ptr(2)->parameters()[0].device(), meta(1));
  at::Tensor input, target;
  {
    const c10::DeviceGuard guard(meta(0));
    input = at::empty({64, 1 << 20}, at::TensorOptions().device(at::kMeta));
  }
  {
    const c10::DeviceGuard guard(meta(1));
    target = at::empty({64, 1 << 10}, at::TensorOptions().device(at::kMeta));
  }
  const StepResult result = pipe->step({input}, {target}, [](const Tensors& out, const Tensors& y) {
    EXPECT_EQ(out.at(0).device(), meta(1));
    EXPECT_EQ(y.at(0).sizes(), out.at(0).sizes());
    return (out.at(0) - y.at(0)).square().mean();
  });
  EXPECT_TRUE(std::isnan(result.loss));
  for (const at::Tensor& p : model->parameters()) {
    ASSERT_TRUE(p.grad().defined());
    EXPECT_EQ(p.grad().device(), p.device());
    EXPECT_EQ(p.grad().sizes(), p.sizes());
  }
}

}  // namespace
}  // namespace gpipe
