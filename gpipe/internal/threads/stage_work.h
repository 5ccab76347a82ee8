// StageWork: for which stage of a pipeline a thread works.
//
// Allocators see a thread and nothing else. An event that they report (memory is short, a block was
// taken) is attributed to the stage whose action the thread runs. In tests, so is a wait for a
// device.
#ifndef GPIPE_INTERNAL_THREADS_STAGE_WORK_H_
#define GPIPE_INTERNAL_THREADS_STAGE_WORK_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/internal/threads/seen_by_autograd.h"
#include "gpipe/out_of_memory.h"

namespace gpipe::internal {

// Identifies a stage. Its layers would not identify it, because several pipelines may have the same
// layers.
struct StageId {
  const void* pipeline = nullptr;  // the address of a Pipeline
  int64_t stage = 0;
};

// A pipeline has a StageWork for each stage, as long as the pipeline lives.
//
// Thread-safety: thread-safe.
class StageWork {
 public:
  // `place` returns what the stage is doing. It is called on the threads that work for the stage.
  explicit StageWork(StageId id, std::function<std::string()> place = nullptr)
      : id_(id), place_(std::move(place)) {}

  // The StageWork of the calling thread, or of the thread on whose behalf autograd uses the calling
  // thread. Null outside of the actions of stages.
  static StageWork* current();

  StageId id() const { return id_; }
  // The place in the words of messages, like "in the forward of stage 1, micro-batch 3, layer 5
  // ('relu')".
  std::string place() const { return place_ ? place_() : ""; }

  // The last shortage of memory since the stage began its action.
  std::optional<OutOfMemory> out_of_memory() const;
  void set_out_of_memory(std::optional<OutOfMemory> what);

 private:
  const StageId id_;
  const std::function<std::string()> place_;
  mutable std::mutex mutex_;
  std::optional<OutOfMemory> out_of_memory_;  // guarded by mutex_
};

// A scope around the steps of a worker, which runs the actions of one or several stages.
class StageWorkScope {
 public:
  // If `on_autograd_threads`, the scope also holds on the threads that autograd uses on this
  // thread's behalf, as it does for accelerators.
  explicit StageWorkScope(bool on_autograd_threads);
  ~StageWorkScope();
  StageWorkScope(const StageWorkScope&) = delete;
  StageWorkScope& operator=(const StageWorkScope&) = delete;

  // Called under a scope: this thread begins an action of the stage. The thread works for the stage
  // until the next action begins or the scope ends, so that sending the results belongs to the
  // action.
  static void begin_action(StageWork& work);

 private:
  friend class StageWork;
  static c10::DebugInfoKind autograd_info() { return c10::DebugInfoKind::TEST_INFO; }

  StageWork* former_;
  std::optional<SeenByAutogradScope<autograd_info, StageWork>> for_autograd_;
};

// Notes a shortage of memory for the stage that the calling thread works for, if any.
void report_out_of_memory(const OutOfMemory& what);

// Makes CUDA's allocator report shortages of memory, for the rest of the process. Idempotent. Does
// nothing if LibTorch has no CUDA, or an allocator that reports none (cudaMallocAsync).
// Requirements: the machine has a GPU.
void watch_cuda_memory();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_STAGE_WORK_H_
