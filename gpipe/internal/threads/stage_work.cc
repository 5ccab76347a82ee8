#include "gpipe/internal/threads/stage_work.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <utility>

namespace gpipe::internal {
namespace {

thread_local StageWork* current_work = nullptr;

}  // namespace

StageWork* StageWork::current() {
  if (current_work != nullptr) return current_work;
  return SeenByAutogradScope<StageWorkScope::autograd_info, StageWork>::current();
}

std::optional<OutOfMemory> StageWork::out_of_memory() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return out_of_memory_;
}

void StageWork::set_out_of_memory(std::optional<OutOfMemory> what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  out_of_memory_ = what;
}

StageWorkScope::StageWorkScope(bool on_autograd_threads)
    : former_(std::exchange(current_work, nullptr)) {
  if (on_autograd_threads) for_autograd_.emplace(&current_work);
}

StageWorkScope::~StageWorkScope() { current_work = former_; }

void StageWorkScope::begin_action(StageWork& work) {
  work.set_out_of_memory(std::nullopt);
  current_work = &work;
}

void report_out_of_memory(const OutOfMemory& what) {
  if (StageWork* const work = StageWork::current()) work->set_out_of_memory(what);
}

void watch_cuda_memory() {
#if GPIPE_TORCH_HAS_CUDA
  static const bool watching = [] {
    at::globalContext().lazyInitDevice(c10::kCUDA);  // CUDA has no allocator before
    try {
      c10::cuda::CUDACachingAllocator::get()->attachOutOfMemoryObserver(
          [](int64_t device, size_t asked, size_t total, size_t free) {
            report_out_of_memory({c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)),
                                  static_cast<int64_t>(asked), static_cast<int64_t>(free),
                                  static_cast<int64_t>(total)});
          });
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }();
  (void)watching;
#endif
}

}  // namespace gpipe::internal
