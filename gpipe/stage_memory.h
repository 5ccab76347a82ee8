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

// In bytes.
struct StagePeak {
  int64_t stage = 0;
  c10::Device device;
  int64_t model = 0;  // parameters and buffers of its layers, as they are when it is asked
  int64_t taken = 0;  // the peak of what its actions took and nobody has given back
};
struct DevicePeak {
  c10::Device device;
  int64_t allocated = 0;            // in tensors
  std::optional<int64_t> reserved;  // what the allocator has from the driver; none for the CPU
};

// Counts for as long as it lives, on the CPU and on CUDA devices.
//
// A block of memory belongs to the stage whose action took it, until it is given back, even if
// another stage on the same device still needs it: a stage's outputs, graphs and gradients are its
// own, the activation that the next stage keeps as its input is this one's. A copy to another
// device belongs to the stage there; where several share that device, only to the device. Work on
// the calling thread (joined outputs, the optimizer) belongs to devices only.
//
// What LibTorch makes once, such as cuBLAS's work space (32 MiB on recent GPUs), belongs to the
// stage that was first to need it; if it was made before this, it belongs to nobody. From LibTorch
// 2.15 on cuBLAS's is made for each call, and is in the peak of every stage that calls it.
//
// `reserved` cannot be told apart by stage: stages on one device share the caching allocator's
// segments.
//
// Requirements: at most one lives at a time, and no profile of sizes and no memory plan is made
// meanwhile; otherwise std::logic_error. On the CPU a device's `allocated` is what is taken while
// this lives: without the model.
//
// Thread-safety: thread-safe.
//
// Example:
//   gpipe::StageMemory memory(pipe);
//   pipe->step({input}, {target}, loss_fn);
//   for (const auto& peak : memory.stages()) std::cout << peak.stage << ": " << peak.taken << "\n";
class StageMemory {
 public:
  // Throws c10::ValueError for a pipeline on other devices.
  explicit StageMemory(const GPipe& pipe);
  ~StageMemory();
  StageMemory(const StageMemory&) = delete;
  StageMemory& operator=(const StageMemory&) = delete;

  // The peaks begin anew, with what is held now.
  void reset();

  // Since the last reset(), by stage.
  std::vector<StagePeak> stages() const;
  // Since the last reset(), each device once, in the order of the stages.
  std::vector<DevicePeak> devices() const;

 private:
  class Counter;

  GPipe pipe_;
  std::vector<c10::Device> devices_;
  std::unique_ptr<Counter> counter_;
};

}  // namespace gpipe

#endif  // GPIPE_STAGE_MEMORY_H_
