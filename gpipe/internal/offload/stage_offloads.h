// StageOffloads: the memory of a stage's cells, on its way to the host and back.
#ifndef GPIPE_INTERNAL_OFFLOAD_STAGE_OFFLOADS_H_
#define GPIPE_INTERNAL_OFFLOAD_STAGE_OFFLOADS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/internal/offload/made_memory.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Whether some cell of the schedule is offloaded.
bool has_offloads(const Schedule& schedule);

class StageOffloads;

using Offloads = std::vector<std::unique_ptr<StageOffloads>>;  // [stage]; null: not in this
                                                               // process, or on the CPU

// Until the result is destroyed, what operators make for the cell may be offloaded. Null if it is
// not to go. `offloads` may be null.
std::unique_ptr<MadeMemory::Scope> note_made(const Offloads* offloads, int64_t stage,
                                             int64_t micro_batch);

// What a cell alone holds goes to the host and comes back. The device's memory of its storages is
// given up and replaced; tensors, views, graph nodes and counts of changes stay the objects that
// they are. A storage that changes before its memory would go stays on the device.
//
// A storage that an operator of another cell is given (a mask, say, that a layer makes in the first
// micro-batch for all) comes back at once and stays. In the next run what is made at its place
// stays from the first on. While a storage is away, any other access to its memory is an error.
//
// The calls for a cell that is offloaded come in this order: note() while its part before the gap
// runs, depart(), offload(), reload(), arrive(); each on the stage's stream. Copies run on two
// streams of their own. Memory goes, and comes, where the stage's stream has waited for them, so
// no allocator has to be told of other streams, and no thread waits.
//
// Pinned memory of the host is kept between runs.
//
// Thread-safety: none; only one thread at a time works on a stage. In a backward autograd's threads
// run its nodes at the same time, whose operators are seen, too (keep_here()).
class StageOffloads {
 public:
  // Storages of fewer bytes stay on the device.
  static constexpr size_t kLeastBytes = 64 * 1024;

  explicit StageOffloads(c10::Device device);
  ~StageOffloads();
  StageOffloads(const StageOffloads&) = delete;
  StageOffloads& operator=(const StageOffloads&) = delete;

  // Called before the first cell of a run, with the schedule's actions of this stage.
  void begin_run(int64_t stage, const Schedule& schedule);
  // Called after the last one, also after a failure: the stage's stream waits for what is under
  // way, all that the run had taken is free again, and what is away comes back if something holds
  // it. What finds no memory then stays an error.
  void end_run() noexcept;

  // What the cell's operators make while this lives may be offloaded if the cell's memory goes, and
  // what they are given of other cells stays. Null if there is nothing of either kind.
  std::unique_ptr<MadeMemory::Scope> note(int64_t micro_batch);

  // Begins the copies of what the cell holds after `action`, if it is offloaded before its next
  // part: of what its operators have made that is still there, except of `held` (results, and what
  // layers have registered meanwhile), and of `kept`, inputs of a cell that recomputes, where
  // nothing else holds them. `kept` has all tensors that the cell has.
  void depart(const Action& action, const std::vector<at::Tensor>& held,
              const std::vector<const at::Tensor*>& kept);
  void offload(int64_t micro_batch);
  void reload(int64_t micro_batch);
  // Makes the stage's stream wait for the cell's memory. No effect if it is not under way.
  void arrive(int64_t micro_batch);

  // Bytes of pinned memory that are kept.
  size_t pinned_bytes() const { return pinned_bytes_; }

 private:
  struct Block {
    at::Tensor bytes;
    std::shared_ptr<c10::Event> read;  // behind the last copy from it
  };
  struct Moving {
    StoragePtr storage;
    std::vector<c10::VariableVersion> counters;  // of changes
    // When the copy began.
    size_t size = 0;
    const void* address = nullptr;
    uint64_t changes = 0;
    Block block;
    bool away = false;
    StoragePtr memory;  // what it will have, while that is being filled
  };
  struct Cell {
    // The part before its gap, until its copies have begun; none if it is not offloaded.
    std::optional<ActionKind> after;
    MadeMemory made;
    std::vector<Moving> moving;
    std::shared_ptr<c10::Event> copied, back;

    explicit Cell(MadeMemory here) : made(std::move(here)) {}
  };
  // The micro-batch in whose cell a storage was made, and its number there.
  using Place = std::pair<int64_t, size_t>;
  struct Origin {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that none other gets its address
    Place place;
  };

  MadeMemory seen_here();
  std::vector<MadeMemory::Made> movable(int64_t micro_batch);
  void keep_here(const c10::StorageImpl* storage);  // thread-safe beside itself
  void bring_back(const Cell& cell, Moving& moving);
  bool may_go(const c10::StorageImpl& storage) const;
  bool is_unchanged(const Moving& moving) const;
  Block take_block(size_t size);
  void give_back(Block block);
  void make_blocks(const std::vector<Moving>& moving);
  void settle(int64_t micro_batch);
  at::Tensor bytes_of(const StoragePtr& storage, size_t size) const;
  StoragePtr memory_for(const Moving& moving) const;
  void begin_copy_back(const Moving& moving) const;
  void give_memory(Moving& moving) const;

  std::mutex keeping_;  // held by keep_here()
  const c10::Device device_;
  const c10::Stream to_host_;
  const c10::Stream to_device_;
  std::optional<c10::Stream> stage_;  // the stream on which the stage computes
  std::vector<Cell> cells_;           // [micro-batch]
  int64_t most_away_ = 0;             // of the run's cells at once
  // Layers make what they keep for all later calls in their first one, so its memory stays.
  bool is_first_ = true;
  // What cells made that may be away, or may go later.
  std::unordered_map<const c10::StorageImpl*, Origin> origins_;
  // Where storages were made that other cells used, in this run and in the one before.
  std::set<Place> used_, used_before_;
  MadeMemory watched_;  // what cells see that do not go themselves
  std::multimap<size_t, Block> free_;
  size_t pinned_bytes_ = 0;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OFFLOAD_STAGE_OFFLOADS_H_
