// PeakMemory: what devices hold at most while something runs on them.
#ifndef GPIPE_EXPERIMENTS_ROWS_PEAK_MEMORY_H_
#define GPIPE_EXPERIMENTS_ROWS_PEAK_MEMORY_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace gpipe::experiments {

struct DevicePeak {
  c10::Device device;
  int64_t bytes = 0;
};

// The peak of the CPU counts the tensors that LibTorch allocates while this object lives. Earlier
// ones do not count, so make it before the model. The peak of a CUDA device is what LibTorch's
// caching allocator has reserved there, as in the published tables.
//
// Requirements: only one may live at a time, and no profile of sizes or memory plan may be made
// meanwhile (AllocationScope).
class PeakMemory {
 public:
  // A device counts once, however often it is listed. Throws std::invalid_argument for a device
  // that is neither the CPU nor a CUDA device.
  explicit PeakMemory(const std::vector<c10::Device>& devices);
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  // Restarts the peaks from what is held now. What CUDA's allocator has cached goes back to the
  // driver.
  void reset();

  // The peaks since the last reset(), by device, in the order of the list.
  std::vector<DevicePeak> peaks() const;

 private:
  class CpuMemory;

  std::vector<c10::Device> devices_;
  std::unique_ptr<CpuMemory> cpu_;  // null: the CPU is not among the devices
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_PEAK_MEMORY_H_
