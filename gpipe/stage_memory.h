// StageMemory: how much of its device's memory each stage of a pipeline takes at most, also where
// stages share a device.
#ifndef GPIPE_STAGE_MEMORY_H_
#define GPIPE_STAGE_MEMORY_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe {

namespace internal {
class PeakMemory;
}  // namespace internal

// The memory of a stage. Sizes are in bytes.
struct StagePeak {
  int64_t stage = 0;
  c10::Device device;
  int64_t model = 0;  // parameters and buffers of its layers, at the time of the call
  int64_t taken = 0;  // the peak of the memory that its actions took and that was not freed yet
};
// The peaks of a device's memory, in bytes.
struct DevicePeak {
  c10::Device device;
  int64_t allocated = 0;            // what tensors had
  std::optional<int64_t> reserved;  // what the allocator had from the driver; none for the CPU
};

// Counts memory as long as this object lives, on the CPU and on CUDA devices.
//
// A block of memory belongs to the stage whose action took it, until it is given back, even if
// another stage on the same device still needs it. So a stage's outputs, graphs and gradients are
// its own, and an activation that the next stage keeps as its input belongs to the stage that made
// it. A copy to another device belongs to the stage there; where several stages share that device,
// only to the device. Memory taken on the calling thread (joined outputs, the optimizer) belongs to
// devices only.
//
// Memory that LibTorch takes once, such as cuBLAS's workspace (32 MiB on recent GPUs), belongs to
// the stage that was first to need it; if it was taken before this object was made, it belongs to
// no stage. From LibTorch 2.15 on, cuBLAS's workspace is made for each call, and is in the peak of
// every stage that calls it.
//
// `reserved` cannot be told apart by stage: stages on one device share the caching allocator's
// segments.
//
// Requirements: at most one lives at a time, and no profile of sizes and no memory plan is made
// meanwhile; otherwise std::logic_error is thrown. On the CPU a device's `allocated` counts only
// memory that is taken while this object lives: the model is not in it.
//
// Thread-safety: thread-safe.
//
// Example:
//   gpipe::StageMemory memory(pipe);
//   pipe->step({input}, {target}, loss_fn);
//   for (const auto& peak : memory.stages()) std::cout << peak.stage << ": " << peak.taken << "\n";
class StageMemory {
 public:
  // Throws c10::ValueError for a pipeline with a stage that is neither on the CPU nor on a CUDA
  // device.
  explicit StageMemory(const GPipe& pipe);
  ~StageMemory();
  StageMemory(const StageMemory&) = delete;
  StageMemory& operator=(const StageMemory&) = delete;

  // Starts the peaks anew, from the memory that is held now.
  void reset();

  // The peaks since the last reset(), by stage.
  std::vector<StagePeak> stages() const;
  // The peaks since the last reset(), each device once, in the order of the stages.
  std::vector<DevicePeak> devices() const;

 private:
  GPipe pipe_;
  std::unique_ptr<internal::PeakMemory> memory_;
};

}  // namespace gpipe

#endif  // GPIPE_STAGE_MEMORY_H_
