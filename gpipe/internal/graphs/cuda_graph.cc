// CUDA Graphs, as LibTorch records them, behind the interface of device_graph.h. It has no header:
// linking registers it.

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <torch/version.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/graphs/device_graph.h"
#include "gpipe/internal/threads/default_generators.h"

// give_up(), CudaPool and prepare_stream() rely on behavior that was read in LibTorch 2.11, which
// does not promise it. Graphs are not recorded with later versions: docs/design/graphs.md
// ("LibTorch's side") says what they do differently.
#define GPIPE_RECORDS_CUDA_GRAPHS \
  (GPIPE_TORCH_HAS_CUDA && TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11)

#if GPIPE_RECORDS_CUDA_GRAPHS
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#endif

namespace gpipe::internal {
namespace {

#if GPIPE_RECORDS_CUDA_GRAPHS

namespace allocator = c10::cuda::CUDACachingAllocator;

// While this thread records, other threads may allocate and use events.
constexpr cudaStreamCaptureMode kMode = cudaStreamCaptureModeThreadLocal;

// The allocator of pinned memory; each recording takes a pool of pinned memory, too.
at::HostAllocator& pinned() { return *at::getHostAllocator(at::kCUDA); }

// Runs a repair of LibTorch's state. Returns whether that succeeded.
template <typename Function>
bool succeeds(const Function& function) noexcept {
  try {
    function();
    return true;
  } catch (...) {
    return false;
  }
}

// While this handler lives, this thread's warnings of LibTorch go to the former handler, except the
// warning that a graph is empty. A stage may launch nothing (views, a cast to the type that a
// tensor already has), and the advice to look for a wrong stream misleads.
class EmptyGraphsAreFine final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("The CUDA Graph is empty") != std::string::npos) return;
    next_->process(warning);
  }

 private:
  c10::WarningHandler* const next_ = c10::WarningUtils::get_warning_handler();
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// A pool of LibTorch dies with the last graph that was recorded in it, and its name cannot be used
// again: the next recording would fail in LibTorch. So this object counts as a user of the pool
// with both allocators, that of device memory and that of pinned memory.
class CudaPool final : public GraphPool {
 public:
  explicit CudaPool(c10::Device device)
      : id(at::cuda::graph_pool_handle()),
        device_(device.index()),
        // The allocator of cudaMallocAsync does not count the users of its pools, and does not need
        // to.
        counted_(succeeds([&] { allocator::createOrIncrefPool(device_, id); })),
        // This is the only call that makes a pool of pinned memory. No memory is taken from the
        // pool here.
        counted_pinned_(succeeds([&] {
          pinned().begin_allocate_to_pool(id, [](c10::Stream) { return false; });
          pinned().end_allocate_to_pool(id);
        })) {}
  ~CudaPool() override {
    if (counted_) succeeds([&] { allocator::releasePool(device_, id); });
    if (counted_pinned_) succeeds([&] { pinned().release_pool(id); });
  }
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;

  const c10::MempoolId_t id;

 private:
  const c10::DeviceIndex device_;
  const bool counted_;
  const bool counted_pinned_;
};

// Destroying a graph may not be allowed while another one is recorded. So graphs that the recorded
// code drops are kept until the recording is over. Guarded by default_generators_mutex().
struct Recording {
  bool underway = false;  // whether the thread that holds the mutex records
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> gone;

  void over() {
    underway = false;
    gone.clear();
  }
};
Recording& recording() {
  // The object is never destroyed, because threads may use it while the process ends.
  static auto* const instance = new Recording;
  return *instance;
}

// LibTorch registers each graph with the default generator. Every replay writes that generator's
// seed to the device, into memory that is freed with the last graph, although another pipeline's
// replays may still run on streams that are not ordered with it. So one more graph, an empty one,
// is never destroyed.
void keep_default_seeds(c10::Device device) {
  static auto* const kept = new std::map<c10::DeviceIndex, std::unique_ptr<at::cuda::CUDAGraph>>;
  const std::lock_guard<std::recursive_mutex> lock(default_generators_mutex());
  if (kept->count(device.index()) > 0) return;
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  graph->register_generator_state(at::globalContext().defaultGenerator(device));
  kept->emplace(device.index(), std::move(graph));
}

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(c10::Device device, std::shared_ptr<GraphPool> pool,
            const std::vector<at::Generator>& generators)
      : device_(device), pool_(std::move(pool)) {
    const c10::InferenceMode off(false);  // see begin()
    keep_default_seeds(device);
    graph_ = std::make_unique<at::cuda::CUDAGraph>();
    for (const at::Generator& generator : generators) graph_->register_generator_state(generator);
  }

  // The destroyed graph leaves the default generator's list of graphs, which a recording in another
  // stage may read. So the mutex is held.
  ~CudaGraph() override {
    const std::lock_guard<std::recursive_mutex> lock(default_generators_mutex());
    if (recording().underway) recording().gone.push_back(std::move(graph_));
    graph_.reset();
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // LibTorch makes tensors for the generators' states, and fills them in later recordings. It
  // refuses to fill them if they were made in inference mode, so that mode is off here.
  void begin() override {
    const c10::InferenceMode off(false);
    try {
      graph_->capture_begin(id(), kMode);
    } catch (...) {
      give_up();
      throw;
    }
    recording().underway = true;
  }

  void end() override {
    const EmptyGraphsAreFine fine;
    try {
      graph_->capture_end();
    } catch (...) {
      give_up();
      recording().over();
      throw;
    }
    recording().over();
  }

  void abort() noexcept override {
    const EmptyGraphsAreFine fine;
    try {
      graph_->capture_end();
    } catch (...) {
      give_up();
    }
    recording().over();
  }

  void replay() override { graph_->replay(); }

 private:
  c10::MempoolId_t id() const { return static_cast<const CudaPool&>(*pool_).id; }

  // Undoes what capture_begin() and capture_end() leave when they fail: the allocators still take
  // memory from the pool, by a filter that refers to this graph, and the default generator refuses
  // to be used outside a recording. (Read in LibTorch 2.11's source, which does not promise it.)
  void give_up() noexcept {
    // Each allocator throws if it has already left the pool, or has never entered it. The pinned
    // allocator is called even if the first one has thrown.
    succeeds([&] {
      allocator::endAllocateToPool(device_.index(), id());
      allocator::releasePool(device_.index(), id());
    });
    succeeds([&] {
      pinned().end_allocate_to_pool(id());
      pinned().release_pool(id());
    });
    // An empty recording makes the generator usable again. If the recording fails, the device is
    // broken, and the next call will say so.
    succeeds([] {
      const EmptyGraphsAreFine fine;
      const c10::InferenceMode off(false);
      at::cuda::CUDAGraph empty;
      empty.capture_begin(at::cuda::graph_pool_handle(), kMode);
      empty.capture_end();
    });
  }

  const c10::Device device_;
  const std::shared_ptr<GraphPool> pool_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

class CudaGraphs final : public GraphDevice {
 public:
  std::shared_ptr<GraphPool> make_pool(c10::Device device) override {
    return std::make_shared<CudaPool>(device);
  }
  std::unique_ptr<DeviceGraph> make_graph(c10::Device device, std::shared_ptr<GraphPool> pool,
                                          std::vector<at::Generator> generators) override {
    return std::make_unique<CudaGraph>(device, std::move(pool), generators);
  }
  // The work spaces of cuBLAS and cuBLASLt belong to a stream and a thread, and would otherwise be
  // taken from the pool of the first graph that needs them, which could never be freed.
  void prepare_stream() override {
    (void)at::cuda::getCurrentCUDABlasHandle();
    (void)at::cuda::getCUDABlasLtWorkspace();
  }
  void release_cached_memory() override { allocator::emptyCache(); }
};

[[maybe_unused]] const bool registered = [] {
  register_graph_device(c10::kCUDA, new CudaGraphs);  // the object lives until the process ends
  return true;
}();

#endif

}  // namespace
}  // namespace gpipe::internal
