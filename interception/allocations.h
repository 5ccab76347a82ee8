// AllocationScope: sees every block of memory that LibTorch takes and gives back, on the CPU, on
// the meta device and on CUDA devices.
//
// On the meta device a block has no memory, but a size and a device; so what a model of any size
// would hold is counted without holding it.
#ifndef INTERCEPTION_ALLOCATIONS_H_
#define INTERCEPTION_ALLOCATIONS_H_

#include <c10/core/Device.h>

#include <cstdint>

namespace gpipe::internal {

class AllocationObserver {
 public:
  virtual ~AllocationObserver() = default;

  // Called when a block of `bytes` is taken. `id` names the block; it is above 0 and never used
  // again in this process. Neither function may throw or make tensors. They are called on the
  // thread that takes or gives back the block, on several threads at the same time.
  virtual void on_allocate(uint64_t id, c10::Device device, int64_t bytes) = 0;
  // Called only for blocks that this observer saw taken.
  virtual void on_free(uint64_t id) = 0;
};

// While it lives, `observer` sees the blocks of all threads. Blocks taken before are not seen, nor
// blocks that are given back afterwards. The first scope puts an allocator in front of LibTorch's
// own for the rest of the process; without a scope it only passes calls on. (If a tensor that was
// made before that grows, it is not seen.) Each scope first takes a small block of its own on each
// kind of device that it counts, and checks that it is told of it.
//
// Requirements: the observer outlives the scope.
//
// Throws std::logic_error if another scope lives, because blocks that one counts would be missing
// in the other; for `cuda` where LibTorch has no CUDA; and if it is not told of its own block,
// because an allocator was put in front that does not pass calls on to the one before.
class AllocationScope {
 public:
  // `cuda`: blocks on CUDA devices, too, of which one must have been used before.
  explicit AllocationScope(AllocationObserver& observer, bool cuda = false);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;
};

// Puts the allocators in front of LibTorch's own, as the first scope does. The allocator of the
// meta device takes blocks on the thread's current meta device (meta/meta_devices.h). Idempotent,
// thread-safe.
void install_allocators();

}  // namespace gpipe::internal

#endif  // INTERCEPTION_ALLOCATIONS_H_
