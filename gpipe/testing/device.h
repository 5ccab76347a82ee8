// Device: the kind of device on which a test program runs.
//
// From one source, gpipe_cc_test makes a program for the CPU; with `cuda = True` also one for GPUs,
// and with `fake = True` one for the fake accelerator.
#ifndef GPIPE_TESTING_DEVICE_H_
#define GPIPE_TESTING_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpipe::testing {

// Whether GPIPE_TEST_DEVICE names a kind of device that has streams: "cuda", or one that the
// program has registered. Throws std::runtime_error if it names anything else except "cpu".
bool for_gpus();

// The number of GPUs, or of devices of the registered kind.
int64_t gpu_count();

// On the CPU returns the CPU. On GPUs returns device `number`, modulo the number of devices. Throws
// std::runtime_error if there are no devices.
c10::Device device(int64_t number = 0);

// A device for each partition: device(0), device(1), ...
std::vector<c10::Device> devices(int64_t partitions);

// A copy on `device`, even if the tensor is already there, so that no other code can change it.
at::Tensor copy_on(c10::Device device, const at::Tensor& tensor);
std::vector<at::Tensor> on(c10::Device device, const std::vector<at::Tensor>& tensors);
// The tensor on the CPU; undefined stays undefined.
at::Tensor on_host(const at::Tensor& tensor);

// Keeps the device's current stream busy for about a tenth of a second, without waiting for it. On
// the CPU, which has no streams, it sleeps for a moment. Throws std::runtime_error for a GPU if
// this program was built without a CUDA Toolkit.
void slow_work(c10::Device device);

// Keeps the device's current stream busy for as long as the result lives, if the kind of device can
// do that. Otherwise does what slow_work() does.
[[nodiscard]] std::shared_ptr<void> hold_stream(c10::Device device);

// While the object lives, a new stream is current on each device, for this thread. It does nothing
// on the CPU.
class OtherStreamsScope {
 public:
  OtherStreamsScope();

 private:
  c10::MultiStreamGuard guard_;
};

// While the object lives, host threads may wait for a device even if the kind of device forbids it
// (see DeviceKind). It is for layers that read a value of a tensor.
class HostWaitsAllowed {
 public:
  HostWaitsAllowed();
  ~HostWaitsAllowed();
  HostWaitsAllowed(const HostWaitsAllowed&) = delete;
  HostWaitsAllowed& operator=(const HostWaitsAllowed&) = delete;
};

// The functions above for a kind of device. Programs register kinds other than the CPU and CUDA.
struct DeviceKind {
  c10::DeviceType type;
  int64_t (*count)();
  void (*slow_work)(c10::Device device);
  // If this is null, slow_work() is called.
  std::shared_ptr<void> (*hold_stream)(c10::Device device) = nullptr;
  // If this is null, waits are always allowed.
  void (*allow_host_waits)(bool allowed) = nullptr;
};

// Adds a kind of device. Static initializers in the libraries of a program call it. `name` is the
// value of GPIPE_TEST_DEVICE that selects the kind.
void register_device_kind(const std::string& name, const DeviceKind& kind);

// Base of tests that run on the program's device.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (for_gpus() && gpu_count() == 0) GTEST_SKIP() << "this machine has no GPU";
  }
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_DEVICE_H_
