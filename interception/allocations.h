// AllocationScope: sees every block of memory that LibTorch takes and gives back, on the CPU, on
// the meta device and on CUDA devices.
//
// On the meta device a block has a size and a device, but no memory. So the memory of a model of
// any size can be counted on a machine that could not hold it.
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
  // Called only if this observer was told that the block was taken.
  virtual void on_free(uint64_t id) = 0;
};

// While it lives, `observer` is told of the blocks of all threads. It is not told of blocks that
// were taken before the scope, and not of blocks that are freed after it. The first scope puts an
// allocator in front of LibTorch's own for the rest of the process; without a scope that allocator
// only passes calls on. (If a tensor that was made before then grows, that is not reported.) Each
// scope first takes a small block on each kind of device that it counts, and checks that the block
// is reported.
//
// Requirements: the observer outlives the scope.
//
// Throws std::logic_error if another scope lives, because each would lack the blocks that the other
// counts; for `cuda` if LibTorch has no CUDA; and if its own block is not reported, because an
// allocator was put in front that does not pass calls on to the one before.
class AllocationScope {
 public:
  // `cuda`: whether blocks on CUDA devices are counted, too. A CUDA device must have been used
  // before.
  explicit AllocationScope(AllocationObserver& observer, bool cuda = false);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;
};

// Puts allocators that count before LibTorch's own. The first AllocationScope does this by itself.
// Call it earlier if meta devices must work before there is a scope: the allocator of the meta
// device takes blocks on the thread's current meta device (meta/meta_devices.h). Idempotent,
// thread-safe.
void install_allocators();

}  // namespace gpipe::internal

#endif  // INTERCEPTION_ALLOCATIONS_H_
