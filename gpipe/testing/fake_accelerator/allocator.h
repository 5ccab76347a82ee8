// Allocator: device memory and pinned host memory, which is kept and reused immediately.
//
// It follows LibTorch's rules for CUDA (c10/cuda/CUDACachingAllocator.h,
// ATen/core/CachingHostAllocator.h) as far as a program may rely on them. In all other respects it
// is strict: reading memory that was not written, or was freed, gives NaN, and using memory against
// the rules counts as a race.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_ALLOCATOR_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_ALLOCATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/testing/fake_accelerator/runtime.h"

namespace gpipe::testing::fake {

// Blocks have sizes of powers of two and belong to the stream for which they were first allocated,
// or to the host. A freed block is the next one that its owner gets in that size. Its bytes are set
// to 0xFF (floating: NaN, integers: -1) when it is freed and when it is allocated: by the owning
// stream, in order with its kernels, as an access that the race detector judges. So a block must
// not be freed while another stream uses it that was not recorded and that the owner has not waited
// for.
//
// A device has kCapacity bytes, or what limit() allows; freed memory counts as free immediately.
//
// While a thread allocates to a pool of a device (see begin_pool()), the allocator loses uses, as
// LibTorch's does: a record() meanwhile, for any block of the device and by any thread, is taken
// for a part of the recording, and forgotten if the block is freed before all recordings are over.
//
// Thread-safety: any thread may call any function.
//
// Example:
//   Allocator allocator(runtime);
//   void* block = allocator.allocate({0, 0}, 100);
//   allocator.record(block, {0, 3});  // stream 3 uses it too
//   allocator.free(block);            // reused when stream 3 is done
class Allocator {
 public:
  static constexpr size_t kCapacity = size_t{16} << 30;

  // Thrown if a device has less free memory than it was asked for.
  struct Short : std::bad_alloc {
    const char* what() const noexcept override { return "a fake device is out of memory"; }
    size_t asked = 0;
    size_t free = 0;
    size_t total = 0;
  };

  // Requirements: `runtime` outlives it.
  explicit Allocator(Runtime& runtime) : runtime_(runtime) {}
  // Waits for the devices; frees all memory, including what was not given back.
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // Returns at least `bytes`, aligned to 512, for use on `owner`. Throws Short, std::bad_alloc.
  void* allocate(StreamId owner, size_t bytes);
  // Returns pinned memory of the host.
  void* allocate_pinned(size_t bytes);
  // Requirements: `block` comes from allocate() or allocate_pinned(), and has not been freed since.
  void free(void* block);
  // Notes that `stream` uses the block. The work that the stream has when the block is freed must
  // be over before the block is reused. Has no effect for a block's own stream, or for an address
  // outside all blocks.
  void record(const void* address, StreamId stream);
  // Whether the address is in pinned memory that is allocated.
  bool is_pinned(const void* address);

  // Pools are for graphs. From begin_pool() to end_pool(), memory that is allocated for the stream
  // while it is recorded comes from the pool, and goes back to it whenever it is freed. So in each
  // replay the recorded tasks find it unused by others. Its bytes are set to 0xFF by recorded
  // tasks, too.
  //
  // As in LibTorch, a pool has users. Each begin_pool() adds a user, for the graph, and use_pool()
  // adds another one. release_pool() is called once for each user. The pool dies when its last user
  // is released. After that begin_pool() and use_pool() throw std::logic_error.
  int64_t make_pool();
  void use_pool(int64_t pool);
  void begin_pool(StreamId owner, int64_t pool);
  void end_pool(StreamId owner);
  // If the released user is the last one, nothing recorded in the pool may be replayed later. Waits
  // for the devices, as freeing memory does.
  void release_pool(int64_t pool);

  // From now on the device has `bytes` bytes. Memory that is already allocated stays allocated.
  void limit(int device, size_t bytes);
  // Makes the allocation on the device that comes after `before` others throw Short, once.
  void fail(int device, int64_t before);
  // How often Short was thrown.
  int64_t failures() const;
  // Bytes of the device's blocks that are allocated now, and the most since reset_peak().
  size_t in_use(int device) const;
  size_t peak(int device) const;
  void reset_peak(int device);

  struct Counts {
    int64_t from_system = 0;  // blocks
    int64_t reused = 0;       // blocks
  };
  Counts counts() const;

 private:
  struct FreeBytes {
    void operator()(char* bytes) const;
  };
  struct Block {
    std::unique_ptr<char, FreeBytes> bytes;
    size_t size = 0;
    std::optional<StreamId> owner;  // none: pinned memory
    int64_t pool = 0;               // 0: the block belongs to no pool
    bool allocated = true;
    std::set<StreamId> users;    // streams that were recorded since the block was allocated
    std::set<StreamId> lost;     // users that were recorded during a recording
    std::vector<Event> pending;  // events that must be over before the block is reused
  };

  void* allocate(std::optional<StreamId> owner, size_t bytes);
  Block* find(const void* address);
  bool anything_recorded_on(int device) const;
  void await_users(Block& block);
  void collect();
  void keep(Block& block);
  void poison(Block& block, const char* why);
  void discard(Block& block);
  void add_user(int64_t pool);

  Runtime& runtime_;
  mutable std::mutex mutex_;
  // All blocks, by the addresses at which they begin.
  std::map<const char*, std::unique_ptr<Block>> blocks_;
  using Kind = std::tuple<std::optional<StreamId>, int64_t, size_t>;  // owner, pool, size
  std::map<Kind, std::vector<Block*>> free_;
  std::map<StreamId, int64_t> current_pools_;
  std::map<int64_t, int64_t> pool_users_;  // 0: the pool has died
  int64_t last_pool_ = 0;
  std::vector<Block*> deferred_;  // blocks with users that were freed during a recording
  std::vector<Block*> pending_;
  Counts counts_;
  struct Device {
    size_t total = kCapacity;
    size_t in_use = 0;
    size_t peak = 0;
    int64_t fail_after = -1;  // so many allocations succeed first; negative: none fails
  };
  void take(Device& device, size_t asked, size_t size);
  std::array<Device, kDevices> devices_;
  int64_t failures_ = 0;
};

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_ALLOCATOR_H_
