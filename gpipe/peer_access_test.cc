// Between two GPUs whose hardware has peer access, a pipeline's values go the direct way. LibTorch
// enables it at the first copy between two devices; this shows that ours is such a copy.
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <utility>

#include "gpipe/gpipe.h"
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

// Of the CUDA runtime that LibTorch uses; this program links none.
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
    if (!at::cuda::canDeviceAccessPeer(device(0).index(), device(1).index())) {
      GTEST_SKIP() << "the first two GPUs cannot access each other's memory";
    }
  }
};

TEST_F(PeerAccess, IsOnAfterAStepBetweenTwoGpus) {
  testing::manual_seed(1);
  GPipe pipe(nn::Sequential(nn::Linear(64, 64), nn::Linear(64, 64)),
             GPipeOptions({1, 1}).devices({device(0), device(1)}).chunks(2));
  const at::Tensor x = torch::randn({8, 64}).to(device(0)).requires_grad_();
  pipe->step({x}, {}, [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); });
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    // Enabling it once more tells whether it was on.
    const c10::DeviceGuard guard(device(from));
    EXPECT_EQ(enable_peer_access(device(to)), cudaErrorPeerAccessAlreadyEnabled)
        << "from " << from << " to " << to;
  }
}
#endif

}  // namespace
}  // namespace gpipe
