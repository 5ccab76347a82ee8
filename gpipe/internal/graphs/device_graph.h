// DeviceGraph: kernels that are recorded once and launched again as a whole, as CUDA Graphs are.
//
// The interface is as thin as it can be, so that the decisions when to record and when to replay
// (stage_graphs.h) are tested without a GPU. CUDA (cuda_graph.cc) and the fake accelerator
// implement it.
#ifndef GPIPE_INTERNAL_GRAPHS_DEVICE_GRAPH_H_
#define GPIPE_INTERNAL_GRAPHS_DEVICE_GRAPH_H_

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpipe/internal/threads/default_generators.h"

namespace gpipe::internal {

// Device memory that belongs to graphs. Memory that is allocated while a graph of the pool is
// recorded comes from the pool. Freed memory goes back to it, and only later recordings of the pool
// may get it. So graphs of one pool must be replayed in an order in which none needs what another
// one has overwritten. Graphs may be recorded in the pool as long as it lives, even if the earlier
// ones are gone.
class GraphPool {
 public:
  virtual ~GraphPool() = default;
};

// begin() and end() are called once, with the same stream current; in between, the thread must not
// wait for the device. If end() cannot be called, abort() is called instead; if begin() throws,
// neither is. replay() may be called any number of times, on any stream of the device.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // From now on, kernels launched on the current stream are recorded and do not run.
  virtual void begin() = 0;
  // Throws c10::Error if something cannot be recorded; then the graph cannot be used.
  virtual void end() = 0;
  virtual void abort() noexcept = 0;
  // Launches the graph on the current stream. Its random numbers come from its generators as they
  // are now.
  virtual void replay() = 0;
};

// The graphs of one type of device.
//
// Thread-safety: any thread may call it.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;
  virtual std::shared_ptr<GraphPool> make_pool(c10::Device device) = 0;
  // `generators`: those from which the graph draws. Their states are read at each replay, so they
  // can be seeded before it.
  virtual std::unique_ptr<DeviceGraph> make_graph(c10::Device device,
                                                  std::shared_ptr<GraphPool> pool,
                                                  std::vector<at::Generator> generators) = 0;
  // Makes, on the current stream and outside of any pool, the objects that LibTorch makes once for
  // a stream and a thread.
  virtual void prepare_stream() {}
  // Gives memory that is free, but kept for later, back to the devices. May wait for the devices.
  virtual void release_cached_memory() {}
};

// Called by static initializers. `graphs` must live until the process ends.
void register_graph_device(c10::DeviceType type, GraphDevice* graphs);
// Returns null if devices of this type have no graphs.
GraphDevice* graph_device(c10::DeviceType type);

// The reason why graph_device() is null for this device, as a part of a sentence.
std::string why_no_graphs(c10::Device device);

// Runs `body` while `side`, a stream of its own, is the current stream, and records what `body`
// launches. The former current stream is ordered before and after it. Only one thread of a process
// records at a time. Throws what `body` or the graph throws.
void record_graph(DeviceGraph& graph, const c10::Stream& side, const std::function<void()>& body);

// Calls `record`, which makes a graph and records it, and calls it again if it throws
// c10::OutOfMemoryError: an allocator cannot release its cached memory during a recording, so it
// may run out although memory is free. In between, that memory is released, and the thread may
// wait.
void record_with_all_memory(GraphDevice& graphs, const std::function<void()>& record);

// How many recordings have begun or ended, by whichever thread. The number is odd while one is
// under way.
int64_t recordings_so_far();

// Calls `function`, and calls it again if it throws c10::OutOfMemoryError because another thread
// records: an allocator cannot release its cached memory during any recording. In between, the
// thread waits for the recording's end, and that memory is released. `may_repeat` is asked before
// the second call: it must return whether the first one has changed nothing that the second one
// would notice.
template <typename Function, typename MayRepeat>
auto despite_recordings(GraphDevice& graphs, const Function& function, const MayRepeat& may_repeat)
    -> decltype(function()) {
  const int64_t before = recordings_so_far();
  try {
    return function();
  } catch (const c10::OutOfMemoryError&) {
    const int64_t now = recordings_so_far();
    if ((now == before && now % 2 == 0) || !may_repeat()) throw;
  }
  {
    const std::lock_guard<std::recursive_mutex> lock(default_generators_mutex());
    graphs.release_cached_memory();
  }
  return function();
}

template <typename Function>
auto despite_recordings(GraphDevice& graphs, const Function& function) -> decltype(function()) {
  return despite_recordings(graphs, function, [] { return true; });
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_DEVICE_GRAPH_H_
