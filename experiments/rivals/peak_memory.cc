#include "experiments/rivals/peak_memory.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <malloc.h>

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace gpipe::experiments {
namespace {

int64_t bytes_of(const std::string& status, const std::string& key) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key + ":", 0) != 0) continue;
    return std::stoll(line.substr(key.size() + 1)) * 1024;  // "VmHWM:   1234 kB"
  }
  throw std::runtime_error("/proc/self/status has no line " + key +
                           "; memory is measured on Linux 4.5 or later only");
}

ResidentMemory resident_memory() {
  std::ostringstream status;
  status << std::ifstream("/proc/self/status").rdbuf();
  return parse_resident_memory(status.str());
}

// Memory that the start of the program has freed would hide later allocations. Both allocators are
// asked, tcmalloc by name: either may be the program's malloc.
void release_free_memory() {
  malloc_trim(0);
  void* const of_tcmalloc = dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
  if (of_tcmalloc != nullptr) reinterpret_cast<void (*)()>(of_tcmalloc)();
}

#if GPIPE_TORCH_HAS_CUDA
namespace cuda = c10::cuda::CUDACachingAllocator;

c10::CachingAllocator::Stat allocated(c10::Device device) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return cuda::getDeviceStats(device.index()).allocated_bytes[kAll];
}

// Restarts the peak of `device`, and returns the bytes that it holds.
int64_t begin_cuda(c10::Device device) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  cuda::emptyCache();
  cuda::resetPeakStats(device.index());
  return allocated(device).current;
}

int64_t peak_of_cuda(c10::Device device) { return allocated(device).peak; }
#else
// Without CUDA in LibTorch no program can have a CUDA device.
int64_t begin_cuda(c10::Device /*device*/) {
  throw std::invalid_argument("this LibTorch has no CUDA");
}
int64_t peak_of_cuda(c10::Device /*device*/) { return 0; }
#endif

}  // namespace

ResidentMemory parse_resident_memory(const std::string& status) {
  ResidentMemory memory;
  memory.peak = bytes_of(status, "VmHWM");
  memory.anonymous = bytes_of(status, "RssAnon");
  memory.other = bytes_of(status, "RssFile") + bytes_of(status, "RssShmem");
  return memory;
}

PeakMemory::PeakMemory(c10::Device device) : device_(device) {
  if (device_.is_cuda()) {
    if (!device_.has_index()) device_.set_index(0);
    before_ = begin_cuda(device_);
    return;
  }
  if (!device_.is_cpu()) {
    throw std::invalid_argument("memory is counted on the CPU and on CUDA devices, not on " +
                                device_.str());
  }
  release_free_memory();
  // Sets the peak to what is held now. Where that is forbidden, an earlier peak may be reported.
  std::ofstream("/proc/self/clear_refs") << "5";
  before_ = resident_memory().anonymous;
}

int64_t PeakMemory::bytes() const {
  if (device_.is_cuda()) return std::max<int64_t>(peak_of_cuda(device_) - before_, 0);
  const ResidentMemory now = resident_memory();
  return std::max<int64_t>(now.peak - now.other - before_, 0);
}

}  // namespace gpipe::experiments
