// Stopwatch: how experiments measure time.
#ifndef GPIPE_EXPERIMENTS_FRAME_STOPWATCH_H_
#define GPIPE_EXPERIMENTS_FRAME_STOPWATCH_H_

#include <c10/core/Device.h>
#include <torch/cuda.h>

#include <chrono>

namespace gpipe::experiments {

// Seconds between two points at which a device has finished its work. As in the published runs,
// only one device is waited for: the first.
class Stopwatch {
 public:
  explicit Stopwatch(c10::Device device) : device_(device) {
    wait();
    begin_ = std::chrono::steady_clock::now();
  }
  double seconds() const {
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  void wait() const {
    if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  }

  c10::Device device_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_STOPWATCH_H_
