// The device that a test program is for: gpipe_cc_test(cuda = True) makes one program for the CPU
// and one for GPUs of the same source.
#ifndef GPIPE_TESTING_DEVICE_H_
#define GPIPE_TESTING_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace gpipe::testing {

// Whether GPIPE_TEST_DEVICE is "cuda".
bool for_gpus();

// How many GPUs this machine has.
int64_t gpu_count();

// For the CPU: the CPU. For GPUs: number `number`, counted round where there are fewer. Throws
// std::runtime_error where there is none.
c10::Device device(int64_t number = 0);

// One for each partition: device(0), device(1), ...
std::vector<c10::Device> devices(int64_t partitions);

// A copy there, also where the tensor is there already: nobody else changes it.
at::Tensor copy_on(c10::Device device, const at::Tensor& tensor);
std::vector<at::Tensor> on(c10::Device device, const std::vector<at::Tensor>& tensors);
// The tensor on the CPU; undefined stays undefined.
at::Tensor on_host(const at::Tensor& tensor);

// Keeps the device's current stream busy for a tenth of a second or so, without waiting for it. On
// the CPU, which has no streams: sleeps for a moment.
void slow_work(c10::Device device);

// Base of tests that run on the program's device.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (for_gpus() && gpu_count() == 0) GTEST_SKIP() << "this machine has no GPU";
  }
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_DEVICE_H_
