#include "meta/meta_devices.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

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
