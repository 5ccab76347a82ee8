#include "gpipe/testing/device.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <thread>

#include "gpipe/testing/spin_kernel/spin_kernel.h"

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace gpipe::testing {
namespace {

void slow_work_on_cpu(c10::Device /*device*/) {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void slow_work_on_cuda([[maybe_unused]] c10::Device device) {
#if GPIPE_TORCH_HAS_CUDA
  // LibTorch's own sleep is not used, because it counts cycles. They are shorter on a busy GPU than
  // on an idle one, so a test of order could pass without showing anything.
  if (!has_spin_kernel()) {
    throw std::runtime_error(
        "to keep a stream busy takes a kernel of ours, and this program was built without a CUDA "
        "Toolkit: set CUDA_HOME, or put nvcc on PATH, and build it again (docs/gpu_runners.md)");
  }
  constexpr int64_t kMilliseconds = 100;
  const c10::DeviceGuard guard(device);
  launch_spin_kernel(kMilliseconds * 1'000'000,
                     c10::cuda::getCurrentCUDAStream(device.index()).stream());
#else
  throw std::runtime_error("this LibTorch has no CUDA");
#endif
}

// The map is a function-local static, because static initializers of other files add kinds to it.
std::map<std::string, DeviceKind>& kinds() {
  static std::map<std::string, DeviceKind> all = {
      {"cpu", {c10::kCPU, [] { return int64_t{0}; }, &slow_work_on_cpu}},
      {"cuda",
       {c10::kCUDA, [] { return static_cast<int64_t>(torch::cuda::device_count()); },
        &slow_work_on_cuda}},
  };
  return all;
}

const DeviceKind& kind() {
  const char* name = std::getenv("GPIPE_TEST_DEVICE");
  const auto found = kinds().find(name == nullptr ? "cpu" : name);
  if (found == kinds().end()) {
    throw std::runtime_error(
        "GPIPE_TEST_DEVICE=" + std::string(name) +
        ": this program has no such devices; gpipe_cc_test makes one that has");
  }
  return found->second;
}

// A new stream on each device; none on the CPU.
std::vector<c10::Stream> new_streams() {
  std::vector<c10::Stream> streams;
  for (int64_t k = 0; k < gpu_count(); ++k) {
    const c10::Device where = device(k);
    streams.push_back(c10::impl::VirtualGuardImpl(where.type()).getStreamFromGlobalPool(where));
  }
  return streams;
}

}  // namespace

void register_device_kind(const std::string& name, const DeviceKind& kind) { kinds()[name] = kind; }

bool for_gpus() { return kind().type != c10::kCPU; }

int64_t gpu_count() { return kind().count(); }

c10::Device device(int64_t number) {
  if (!for_gpus()) return c10::Device(c10::kCPU);
  if (gpu_count() == 0) throw std::runtime_error("this machine has no GPU");
  return c10::Device(kind().type, static_cast<c10::DeviceIndex>(number % gpu_count()));
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

OtherStreamsScope::OtherStreamsScope() : guard_(new_streams()) {}

HostWaitsAllowed::HostWaitsAllowed() {
  if (kind().allow_host_waits != nullptr) kind().allow_host_waits(true);
}

HostWaitsAllowed::~HostWaitsAllowed() {
  if (kind().allow_host_waits != nullptr) kind().allow_host_waits(false);
}

void slow_work(c10::Device device) {
  (device.is_cpu() ? &slow_work_on_cpu : kind().slow_work)(device);
}

std::shared_ptr<void> hold_stream(c10::Device device) {
  if (!device.is_cpu() && kind().hold_stream != nullptr) return kind().hold_stream(device);
  slow_work(device);
  return nullptr;
}

}  // namespace gpipe::testing
