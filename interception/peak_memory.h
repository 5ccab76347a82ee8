// PeakMemory: the most memory that LibTorch's allocators have on some devices.
#ifndef INTERCEPTION_PEAK_MEMORY_H_
#define INTERCEPTION_PEAK_MEMORY_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace gpipe::internal {

// Counts as long as it lives. On the CPU it counts the tensors that LibTorch allocates meanwhile.
// Earlier ones do not count, so make it before the model.
//
// The memory may have numbered parts, such as that of each stage. A block belongs to the part that
// `part_of` gives when the block is taken, until it is given back.
//
// Requirements: only one that counts the CPU or parts may live at a time, and no profile of sizes
// or memory plan may be made meanwhile (AllocationScope).
//
// Thread-safety: thread-safe.
class PeakMemory {
 public:
  static constexpr int64_t kNoPart = -1;
  // The part of a block that the calling thread takes on `device`, or kNoPart. Must not throw or
  // make tensors.
  using PartOf = std::function<int64_t(c10::Device device)>;

  // A device counts once, however often it is listed. Throws std::invalid_argument for a device
  // that is neither the CPU nor a CUDA device.
  explicit PeakMemory(const std::vector<c10::Device>& devices, int64_t parts = 0,
                      PartOf part_of = nullptr);
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  // Restarts the peaks from what is held now. `gives_back`: before that, what CUDA's allocator has
  // cached goes back to the driver.
  void reset(bool gives_back = false);

  const std::vector<c10::Device>& devices() const { return devices_; }

  // The peaks since the last reset(), in bytes. `device`: one of devices().
  //
  // What tensors had.
  int64_t allocated(c10::Device device) const;
  // What the allocator had from the driver; none for the CPU.
  std::optional<int64_t> reserved(c10::Device device) const;
  // By device, what no other program could have: `reserved`, or else `allocated`.
  std::vector<int64_t> held() const;
  // What the blocks of a part had.
  int64_t of_part(int64_t part) const;

 private:
  class Blocks;

  std::vector<c10::Device> devices_;
  std::unique_ptr<Blocks> blocks_;  // null: neither the CPU nor parts are counted
};

}  // namespace gpipe::internal

#endif  // INTERCEPTION_PEAK_MEMORY_H_
