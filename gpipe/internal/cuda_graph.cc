// CUDA Graphs, as LibTorch records them, behind the interface of device_graph.h. It has no header:
// linking registers it.

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include <utility>

#include "gpipe/internal/device_graph.h"

#if GPIPE_TORCH_HAS_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace gpipe::internal {
namespace {

#if GPIPE_TORCH_HAS_CUDA

namespace allocator = c10::cuda::CUDACachingAllocator;

// Other threads allocate, and ask for events, while this one records.
constexpr cudaStreamCaptureMode kMode = cudaStreamCaptureModeThreadLocal;

// LibTorch's pools live as long as their graphs. This is their name.
struct CudaPool final : GraphPool {
  const c10::MempoolId_t id = at::cuda::graph_pool_handle();
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(c10::Device device, std::shared_ptr<GraphPool> pool,
            const std::vector<at::Generator>& generators)
      : device_(device), pool_(std::move(pool)) {
    for (const at::Generator& generator : generators) graph_.register_generator_state(generator);
  }

  void begin() override { graph_.capture_begin(id(), kMode); }

  void end() override {
    try {
      graph_.capture_end();
    } catch (...) {
      give_up();
      throw;
    }
  }

  void abort() noexcept override {
    try {
      graph_.capture_end();
    } catch (...) {
      give_up();
    }
  }

  void replay() override { graph_.replay(); }

 private:
  c10::MempoolId_t id() const { return static_cast<const CudaPool&>(*pool_).id; }

  // What capture_end() leaves undone if something could not be recorded: the allocator still takes
  // memory from the pool, and the default generator refuses to be used outside a recording. (Read
  // in LibTorch 2.11's source; nobody promises it.)
  void give_up() noexcept {
    try {
      allocator::endAllocateToPool(device_.index(), id());
      allocator::releasePool(device_.index(), id());
    } catch (...) {  // it had come that far
    }
    try {
      at::cuda::CUDAGraph empty;
      empty.capture_begin(at::cuda::graph_pool_handle(), kMode);
      empty.capture_end();  // gives the generator back; warns that there is nothing in it
    } catch (...) {         // the device is broken, as the next call will say
    }
  }

  const c10::Device device_;
  const std::shared_ptr<GraphPool> pool_;
  at::cuda::CUDAGraph graph_;
};

class CudaGraphs final : public GraphDevice {
 public:
  std::shared_ptr<GraphPool> make_pool(c10::Device /*device*/) override {
    return std::make_shared<CudaPool>();
  }
  std::unique_ptr<DeviceGraph> make_graph(c10::Device device, std::shared_ptr<GraphPool> pool,
                                          std::vector<at::Generator> generators) override {
    return std::make_unique<CudaGraph>(device, std::move(pool), generators);
  }
  // cuBLAS's work space belongs to a stream and a thread, and would otherwise be taken from the
  // pool of the first graph that needs it.
  void prepare_stream() override { (void)at::cuda::getCurrentCUDABlasHandle(); }
};

[[maybe_unused]] const bool registered = [] {
  register_graph_device(c10::kCUDA, new CudaGraphs);  // lives until the process ends
  return true;
}();

#endif

}  // namespace
}  // namespace gpipe::internal
