// CaptureWatch: notices what a recorded graph could not repeat: waiting for a device, and using
// tensors from outside the recording.
#ifndef GPIPE_INTERNAL_GRAPHS_CAPTURE_WATCH_H_
#define GPIPE_INTERNAL_GRAPHS_CAPTURE_WATCH_H_

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace gpipe::internal {

// While a CaptureWatch lives, its thread records a graph. A replay repeats kernels with the
// addresses and the numbers that they had in the recording. So
// - an operator for whose result the host would have to wait (item(), nonzero(), a copy to or from
//   the host) throws c10::Error before anything was launched, because CUDA would give up the whole
//   recording;
// - an operator that a layer gives a tensor that was neither made here nor is among `known` is
//   noted for check(): another run may have other memory there. So is one that gets a tensor on
//   another device, whose values the recording would keep.
//
// Requirements: it is used under an InterceptionScope.
class CaptureWatch {
 public:
  // Watches only for operators that wait. This is for a backward, whose graph holds no tensor from
  // outside.
  CaptureWatch();
  CaptureWatch(c10::Device device, const std::vector<at::Tensor>& known);
  ~CaptureWatch();
  CaptureWatch(const CaptureWatch&) = delete;
  CaptureWatch& operator=(const CaptureWatch&) = delete;

  // Throws c10::Error that names the first operator that was noted.
  void check() const;

  static bool is_recording();  // of this thread, at this moment

 private:
  struct Observer;

  CaptureWatch* const former_;
  c10::Device device_ = c10::kCPU;
  at::CallbackHandle callback_ = at::INVALID_CALLBACK_HANDLE;
  int depth_ = 0;  // operators that are called by operators are not watched
  absl::flat_hash_set<const c10::StorageImpl*> known_;
  std::string found_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_CAPTURE_WATCH_H_
