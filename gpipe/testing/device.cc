#include "gpipe/testing/device.h"

#include <c10/core/DeviceGuard.h>
#include <torch/cuda.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#if GPIPE_TORCH_HAS_CUDA
#include <ATen/cuda/Sleep.h>
#endif

namespace gpipe::testing {

bool for_gpus() {
  const char* device = std::getenv("GPIPE_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cuda";
}

int64_t gpu_count() { return static_cast<int64_t>(torch::cuda::device_count()); }

c10::Device device(int64_t number) {
  if (!for_gpus()) return c10::Device(c10::kCPU);
  if (gpu_count() == 0) throw std::runtime_error("this machine has no GPU");
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number % gpu_count()));
}

std::vector<c10::Device> devices(int64_t partitions) {
  std::vector<c10::Device> result;
  for (int64_t j = 0; j < partitions; ++j) result.push_back(device(j));
  return result;
}

at::Tensor copy_on(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().to(device, /*non_blocking=*/false, /*copy=*/true)
                          : tensor;
}

std::vector<at::Tensor> on(c10::Device device, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(copy_on(device, tensor));
  return result;
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; }

void slow_work(c10::Device device) {
  if (device.is_cpu()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return;
  }
#if GPIPE_TORCH_HAS_CUDA
  const c10::DeviceGuard guard(device);
  at::cuda::sleep(200'000'000);  // cycles
#else
  throw std::runtime_error("this LibTorch has no CUDA");
#endif
}

}  // namespace gpipe::testing
