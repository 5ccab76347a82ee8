// DeviceGraph: kernels that are recorded once and launched again as a whole, as CUDA Graphs are.
//
// The interface is as thin as it can be, so that what decides when to record and when to replay
// (stage_graphs.h) is tested without a GPU. CUDA implements it (cuda_graph.cc), and the fake
// accelerator does.
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

// Device memory that belongs to graphs. What is allocated while a graph of the pool is recorded
// comes from it. What is freed goes back to it, and may be given to what is recorded later, but to
// nobody else: graphs of one pool must be replayed in an order in which none needs what another one
// has overwritten. Graphs may be recorded in it as long as it lives, also when those before are
// gone.
class GraphPool {
 public:
  virtual ~GraphPool() = default;
};

// begin() and end() are called once, with the same stream current; in between, the thread must not
// wait for the device. Where end() cannot be called, abort() is; if begin() throws, neither is.
// replay() any number of times, on any stream of the device.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // What is launched on the current stream from now on is recorded and does not run.
  virtual void begin() = 0;
  // Throws c10::Error if something cannot be recorded; the graph is then of no use.
  virtual void end() = 0;
  virtual void abort() noexcept = 0;
  // Launches it on the current stream. What it draws comes from its generators as they are now.
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
  // Makes on the current stream, outside of any pool, what LibTorch makes once for a stream and a
  // thread.
  virtual void prepare_stream() {}
  // Gives memory that is free, but kept for later, back to the devices. May wait for them.
  virtual void release_cached_memory() {}
};

// For static initializers. `graphs` lives until the process ends.
void register_graph_device(c10::DeviceType type, GraphDevice* graphs);
// Null: devices of this type have no graphs.
GraphDevice* graph_device(c10::DeviceType type);

// The reason why graph_device() is null for this device, as a part of a sentence.
std::string why_no_graphs(c10::Device device);

// Runs `body` with `side`, a stream of its own, current, and records what that launches. The
// current stream comes before and after it. One thread of a process records at a time. Throws what
// `body` or the graph throws.
void record_graph(DeviceGraph& graph, const c10::Stream& side, const std::function<void()>& body);

// Calls `record`, which makes a graph and records it, and once more if it throws
// c10::OutOfMemoryError: while something is recorded, an allocator cannot release what it keeps, so
// memory may be short that is free. In between that is released, and the thread may wait.
void record_with_all_memory(GraphDevice& graphs, const std::function<void()>& record);

// How many recordings have begun or ended, by whichever thread: odd while one is under way.
int64_t recordings_so_far();

// Calls `function`, and once more if it throws c10::OutOfMemoryError because another thread
// records: an allocator cannot release what it keeps as long as anybody does. In between the thread
// waits for the recording's end, and what is kept is released. `may_repeat` is asked before:
// whether nothing has been changed that a second call would meet.
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
