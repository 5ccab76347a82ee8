#include "gpipe/internal/graphs/device_graph.h"

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/internal/threads/default_generators.h"

namespace gpipe::internal {
namespace {

constexpr size_t kTypes = static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES);

std::atomic<GraphDevice*>& entry_of(c10::DeviceType type) {
  static std::array<std::atomic<GraphDevice*>, kTypes> entries{};
  return entries.at(static_cast<size_t>(type));
}

std::atomic<int64_t> recordings{0};

struct CountedRecording {
  CountedRecording() { ++recordings; }
  ~CountedRecording() { ++recordings; }
  CountedRecording(const CountedRecording&) = delete;
  CountedRecording& operator=(const CountedRecording&) = delete;
};

}  // namespace

int64_t recordings_so_far() { return recordings; }

void register_graph_device(c10::DeviceType type, GraphDevice* graphs) { entry_of(type) = graphs; }

GraphDevice* graph_device(c10::DeviceType type) { return entry_of(type); }

std::string why_no_graphs(c10::Device device) {
  if (!device.is_cuda()) return "there are none on " + device.str();
  return "CUDA Graphs are recorded under LibTorch 2.11 only, and this is " TORCH_VERSION
         " (docs/design/graphs.md, \"LibTorch's side\")";
}

void record_graph(DeviceGraph& graph, const c10::Stream& side, const std::function<void()>& body) {
  const std::lock_guard<std::recursive_mutex> lock(default_generators_mutex());
  const CountedRecording counted;
  const c10::Stream here = current_stream(side.device());
  follow(side, here);
  try {
    const StreamScope scope(side);
    graph.begin();
    try {
      body();
    } catch (...) {
      graph.abort();
      throw;
    }
    graph.end();
  } catch (...) {
    // LibTorch's begin() writes the generators' seeds on the side stream, into memory of this
    // stream. If the graph fails, that memory may have a new owner before the seeds are written.
    try {
      follow(here, side);
    } catch (...) {  // the device is broken; the next call says so
    }
    throw;
  }
  follow(here, side);
}

void record_with_all_memory(GraphDevice& graphs, const std::function<void()>& record) {
  try {
    return record();
  } catch (const c10::OutOfMemoryError&) {  // the memory of this attempt is free now
  }
  {
    // While another thread records, the allocator cannot release memory. So hold the lock that
    // recordings need.
    const std::lock_guard<std::recursive_mutex> lock(default_generators_mutex());
    graphs.release_cached_memory();
  }
  record();
}

}  // namespace gpipe::internal
