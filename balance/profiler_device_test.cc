// Profiles on devices that compute while the host continues: profiler_device_fake_test runs on the
// fake accelerator, profiler_device_cuda_test on a GPU.
#include <ATen/ops/rand.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "balance/costs/profiler.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::device;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::layer;
using testing::on_host;
using ::testing::ThrowsMessage;

class ProfilerDevice : public testing::DeviceTest {
 protected:
  static Tensor sample() { return at::rand({4, 2}).to(device()); }

  // A profile has to wait for the device.
  testing::HostWaitsAllowed allowed;
};

TEST_F(ProfilerDevice, ATimeIsTheDevicesNotTheHosts) {
  nn::Sequential model(nn::Linear(2, 2), layer<Tensor, Tensor>([](const Tensor& x) {
                         testing::slow_work(x.device());
                         return x;
                       }),
                       nn::Linear(2, 2), layer<Tensor, Tensor>([](const Tensor& x) {
                         Tensor y = x * 1;
                         y.register_hook([](const Tensor& g) { testing::slow_work(g.device()); });
                         return y;
                       }),
                       nn::Linear(2, 2));
  model->to(device());
  const auto times = profile_times(model, sample(), TimeOptions().timeout(1e-9));
  for (const size_t other : {0, 2, 4}) {
    EXPECT_GT(times[1].forward, times[other].forward);
    EXPECT_GT(times[1].forward, times[other].backward);
    EXPECT_GT(times[3].backward, times[other].forward);
    EXPECT_GT(times[3].backward, times[other].backward);
  }
}

TEST_F(ProfilerDevice, TheModelIsAsBefore) {
  nn::Sequential model(nn::Linear(2, 3), nn::Linear(3, 2));
  model->to(device());
  std::vector<Tensor> before;
  for (const Tensor& parameter : model->parameters()) {
    before.push_back(on_host(parameter.detach().clone()));
  }
  model->push_back(layer<Tensor, Tensor>([&, weight = model->parameters()[0]](const Tensor& x) {
    weight.variable_data().zero_();
    return x;
  }));
  const Profile result = profile(model, sample(), ProfileOptions().timeout(1e-9));
  EXPECT_EQ(result.layers[0].parameters, (2 * 3 + 3) * 4);
  EXPECT_EQ(result.layers[0].output, 4 * 3 * 4);
  EXPECT_GT(result.layers[0].forward, 0);
  for (size_t k = 0; k < before.size(); ++k) {
    EXPECT_THAT(on_host(model->parameters()[k].detach()), EqualsBitwise(before[k]));
    EXPECT_FALSE(model->parameters()[k].grad().defined());
  }
}

// On CUDA, sizes come from CUDA's allocator and must be those on the CPU: all tensors here are
// multiples of 512 bytes, as its blocks are. Other devices have no sizes.
TEST_F(ProfilerDevice, Sizes) {
  nn::Sequential model(nn::Linear(256, 512), nn::Tanh(), nn::Linear(512, 128));
  const Tensor input = at::rand({64, 256});
  const Profile on_cpu = profile(model, input, ProfileOptions().timeout(1e-9));
  model->to(device());
  if (!device().is_cuda()) {
    EXPECT_THAT([&] { profile_sizes(model, input.to(device())); },
                ThrowsMessage<c10::ValueError>(HasSubstr("but the model is on")));
    return;
  }
  const Profile there = profile(model, input.to(device()), ProfileOptions().timeout(1e-9));
  for (size_t k = 0; k < 3; ++k) EXPECT_EQ(there.layers[k].kept, on_cpu.layers[k].kept) << k;
}

}  // namespace
}  // namespace gpipe::balance
