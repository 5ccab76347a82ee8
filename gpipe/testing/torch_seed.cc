#include "gpipe/testing/torch_seed.h"

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <mutex>

#include "gpipe/testing/seed.h"

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace gpipe::testing {
namespace {

// Whether at::manual_seed() would be the first use of GPUs in this process. If so, GPUs are not
// seeded, because forked children of a process that has used GPUs cannot use them.
bool would_open_gpus() {
#if GPIPE_TORCH_HAS_CUDA
  return !c10::cuda::CUDACachingAllocator::get()->initialized() &&
         !at::isPrivateUse1HooksRegistered();
#else
  return false;
#endif
}

void seed_all(uint64_t seed) {
  if (!would_open_gpus()) return at::manual_seed(seed);
  at::Generator cpu = at::globalContext().defaultGenerator(c10::kCPU);
  const std::lock_guard<std::mutex> lock(cpu.mutex());
  cpu.set_current_seed(seed);
}

[[maybe_unused]] const bool registered = before_each_test(&seed_all);

}  // namespace

void manual_seed(uint64_t stream) { at::manual_seed(test_random(stream)()); }

}  // namespace gpipe::testing
