// MemoryRecorder: records the memory of a pipeline's training steps as a MemoryTrace.
#ifndef BALANCE_MEMORY_MEMORY_RECORDER_H_
#define BALANCE_MEMORY_MEMORY_RECORDER_H_

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "balance/memory/memory_trace.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/schedule/schedule.h"
#include "interception/allocations.h"

namespace gpipe::balance {

// The stages run on threads of their own, so the order of events on different devices is random.
// Here every block belongs to the action that its thread ran last. In the end the actions are
// sorted in the order in which simulate() begins them, so the trace is the same in every run.
//
// Blocks of threads that do not run the steps are not recorded.
//
// Thread-safety: the functions that the pipeline's threads call are thread-safe. All others are for
// the thread that makes the recorder and calls the pipeline.
class MemoryRecorder final : public internal::AllocationObserver {
 public:
  // Records blocks on devices of `type`. On meta, blocks on `meta:k` count as device k; otherwise
  // all blocks count as device 0. `device_of_stage` uses the same numbers.
  MemoryRecorder(c10::DeviceType type, const Schedule& schedule,
                 std::vector<int32_t> device_of_stage);

  // Adds a block that exists before the first step.
  void add(int64_t bytes, int32_t device, MemoryUse use);

  // Begins a step, or the optimizer's step that follows. What this thread allocates from here on
  // belongs to the step that was begun.
  void begin_step();
  void begin_optimizer();
  // A callback for the step's StepOptions::on_event.
  void on_event(const Event& event);

  // [stage] The bytes of pinned memory of the host that its offloads have taken so far.
  std::vector<int64_t> pinned() const;

  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override;
  void on_free(uint64_t id) override;

  // Returns the trace. The recorder is empty afterwards.
  MemoryTrace finish();

 private:
  struct Block {
    int64_t bytes = 0;
    int32_t device = 0;
    int32_t turn = 0;
    bool copied = false;      // whether a transfer has made it, between actions
    int32_t freed_turn = -1;  // -1: never freed
  };
  struct Recorded {
    int32_t block;
    int32_t turn;
    bool free;
  };

  bool is_mine() const;
  // Whether this thread is the caller, behind the last action of its step: there it updates
  // deferred statistics. What it does then belongs to the last turn.
  bool is_over() const;
  int32_t begin_turn(Turn turn);
  static MemoryUse use_of(const Block& block, const std::vector<Turn>& turns);

  const c10::DeviceType type_;
  const std::vector<int32_t> device_of_stage_;
  const int32_t devices_;
  std::unordered_map<Action, int32_t> order_;  // the place of an action in a step, from 0
  std::vector<Action> actions_;                // the actions in the order of order_

  mutable std::mutex mutex_;
  std::vector<int64_t> pinned_;  // [stage]
  std::vector<Turn> turns_;
  int32_t first_action_ = 0;                    // the turn of the first action of the current step
  std::atomic<size_t> ended_{0};                // the number of its actions that have ended
  const uint64_t number_;                       // the number of this recorder in this process
  std::unordered_map<uint64_t, int32_t> live_;  // from ids of blocks in use to indices in blocks_
  std::vector<MemoryBlock> existing_;
  std::vector<Block> blocks_;
  std::vector<Recorded> events_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_MEMORY_RECORDER_H_
