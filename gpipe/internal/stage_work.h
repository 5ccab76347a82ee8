// StageWork: for which stage of which pipeline a thread works.
//
// Allocators see a thread and nothing else: what they tell (that memory is short, that a block was
// taken) is put down to the stage whose action the thread runs.
#ifndef GPIPE_INTERNAL_STAGE_WORK_H_
#define GPIPE_INTERNAL_STAGE_WORK_H_

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "gpipe/out_of_memory.h"

namespace gpipe::internal {

// One for each stage of a pipeline, as long as that lives.
//
// Thread-safety: thread-safe.
class StageWork {
 public:
  StageWork(const void* pipeline, int64_t stage) : pipeline_(pipeline), stage_(stage) {}

  // The one of the calling thread, or of the thread on whose behalf autograd uses this one; null
  // outside of the actions of stages.
  static StageWork* current();

  // Its address alone, which names it.
  const void* pipeline() const { return pipeline_; }
  int64_t stage() const { return stage_; }

  // What was missing last, since the stage began its action.
  std::optional<OutOfMemory> out_of_memory() const;
  void set_out_of_memory(std::optional<OutOfMemory> what);

 private:
  const void* const pipeline_;
  const int64_t stage_;
  mutable std::mutex mutex_;
  std::optional<OutOfMemory> out_of_memory_;  // guarded by mutex_
};

// Around the steps of a worker, which runs the actions of one or several stages.
class StageWorkScope {
 public:
  // `on_autograd_threads`: also on the threads that autograd uses on this one's behalf, as it does
  // for accelerators.
  explicit StageWorkScope(bool on_autograd_threads);
  ~StageWorkScope();
  StageWorkScope(const StageWorkScope&) = delete;
  StageWorkScope& operator=(const StageWorkScope&) = delete;

  // Under a scope: this thread begins an action of the stage. The work lasts until the next one
  // begins or the scope ends, so that sending the results belongs to it.
  static void begin_action(StageWork& work);

 private:
  StageWork* former_;
  std::optional<c10::DebugInfoGuard> for_autograd_;
};

// Notes it for the stage that the calling thread works for, if any.
void report_out_of_memory(const OutOfMemory& what);

// Makes CUDA's allocator report what it lacks, for the rest of the process. Idempotent. Nothing
// happens where LibTorch has no CUDA, or an allocator that does not tell (cudaMallocAsync).
// Requirements: CUDA is in use, that is, has tensors.
void watch_cuda_memory();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_WORK_H_
