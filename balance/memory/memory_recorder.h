// MemoryRecorder: records the memory that a pipeline's training steps take, as a MemoryTrace.
#ifndef BALANCE_MEMORY_MEMORY_RECORDER_H_
#define BALANCE_MEMORY_MEMORY_RECORDER_H_

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "balance/memory/memory_trace.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/schedule/schedule.h"
#include "interception/allocations.h"

namespace gpipe::balance {

// The stages run on threads of their own, so what happens on one device is interleaved with the
// rest by chance. Here every block is put down to the action that its thread ran last, and in the
// end actions are put into the order in which simulate() begins them: the trace is the same in
// every run.
//
// Blocks of threads that take no part in the steps are not recorded.
//
// Thread-safety: what the pipeline's threads call is thread-safe; the rest is for the thread that
// makes the recorder and calls the pipeline.
class MemoryRecorder final : public internal::AllocationObserver {
 public:
  // Records blocks on devices of `type`: with meta those of `meta:k` as device k, otherwise all as
  // device 0. `device_of_stage` is numbered like that.
  MemoryRecorder(c10::DeviceType type, const Schedule& schedule,
                 std::vector<int32_t> device_of_stage);

  // Blocks that exist before the first step.
  void add(int64_t bytes, int32_t device, MemoryUse use);

  // What this thread does from here on belongs to a step, or to what follows it: the optimizer.
  void begin_step();
  void begin_optimizer();
  // To be StepOptions::on_event of the step.
  void on_event(const Event& event);

  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override;
  void on_free(uint64_t id) override;

  // What was recorded. The recorder is empty afterwards.
  MemoryTrace finish();

 private:
  struct Block {
    int64_t bytes = 0;
    int32_t device = 0;
    int32_t turn = 0;
    bool copied = false;      // between actions: by a transfer
    int32_t freed_turn = -1;  // -1: it was not
  };
  struct Recorded {
    int32_t block;
    int32_t turn;
    bool free;
  };

  bool is_mine() const;
  int32_t begin_turn(Turn turn);
  static MemoryUse use_of(const Block& block, const std::vector<Turn>& turns);

  const c10::DeviceType type_;
  const std::vector<int32_t> device_of_stage_;
  const int32_t devices_;
  std::unordered_map<Action, int32_t> order_;  // place in a step, from 0
  std::vector<Action> actions_;                // in that order

  std::mutex mutex_;
  std::vector<Turn> turns_;
  int32_t first_action_ = 0;                    // its turn, of the current step
  const uint64_t number_;                       // of the recorders of this process
  std::unordered_map<uint64_t, int32_t> live_;  // blocks that are in use, by their ids
  std::vector<MemoryBlock> existing_;
  std::vector<Block> blocks_;
  std::vector<Recorded> events_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_MEMORY_RECORDER_H_
