// Tests that a pipeline's values go the direct way between two GPUs whose hardware has peer access.
// LibTorch enables peer access at the first copy between two devices, so the test shows that the
// pipeline's copy is such a copy. Without peer access, the values must arrive nevertheless.
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <utility>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_seed.h"

#if GPIPE_TORCH_HAS_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <driver_types.h>
#endif

namespace gpipe {
namespace {

#if GPIPE_TORCH_HAS_CUDA
namespace nn = torch::nn;
using testing::device;

// Calls the CUDA runtime that LibTorch uses, because this program does not link one.
int enable_peer_access(c10::Device to) {
  using Enable = int (*)(int device, unsigned flags);
  const auto enable = reinterpret_cast<Enable>(dlsym(RTLD_DEFAULT, "cudaDeviceEnablePeerAccess"));
  TORCH_CHECK(enable != nullptr, "the CUDA runtime is not loaded");
  return enable(to.index(), 0);
}

class PeerAccess : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (testing::gpu_count() < 2) GTEST_SKIP() << "this machine has only one GPU";
  }
};

TEST_F(PeerAccess, IsOnAfterAStepBetweenTwoGpus) {
  testing::manual_seed(1);
  GPipe pipe(nn::Sequential(nn::Identity(), nn::Identity()),
             GPipeOptions({1, 1}).devices({device(0), device(1)}).chunks(2));
  const at::Tensor values = torch::randn({8, 64});
  const at::Tensor weights = torch::randn({8, 64});
  const at::Tensor x = testing::copy_on(device(0), values).requires_grad_();
  const StepResult result = pipe->step(
      {x}, {testing::copy_on(device(1), weights)},
      [](const Tensors& outputs, const Tensors& targets) {
        return (outputs[0] * targets[0]).sum();
      },
      StepOptions().keep_outputs(true));
  EXPECT_EQ(result.outputs[0].device(), device(1));
  EXPECT_THAT(testing::on_host(result.outputs[0]), testing::EqualsBitwise(values));
  EXPECT_THAT(testing::on_host(x.grad()), testing::EqualsBitwise(weights / 2)) << "two chunks";
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    if (!at::cuda::canDeviceAccessPeer(device(from).index(), device(to).index())) continue;
    // If peer access is already on, another call that enables it says so.
    const c10::DeviceGuard guard(device(from));
    EXPECT_EQ(enable_peer_access(device(to)), cudaErrorPeerAccessAlreadyEnabled)
        << "from " << from << " to " << to;
  }
}
#endif

}  // namespace
}  // namespace gpipe
