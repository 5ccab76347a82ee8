#include "gpipe/internal/threads/device_context.h"

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace gpipe::internal {

void enter_device([[maybe_unused]] c10::Device device) {
#if GPIPE_TORCH_HAS_CUDA
  thread_local bool entered = false;
  if (entered || !device.is_cuda()) return;
  c10::cuda::set_device(device.index(), /*force=*/true);
  entered = true;
#endif
}

}  // namespace gpipe::internal
