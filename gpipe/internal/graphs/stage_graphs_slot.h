// StageGraphs::Slot: what StageGraphs keeps of a recorded cell. Only the units of StageGraphs
// include this header.
#ifndef GPIPE_INTERNAL_GRAPHS_STAGE_GRAPHS_SLOT_H_
#define GPIPE_INTERNAL_GRAPHS_STAGE_GRAPHS_SLOT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/boundary/layers_result.h"
#include "gpipe/internal/graphs/device_graph.h"
#include "gpipe/internal/graphs/graph_memory.h"
#include "gpipe/internal/graphs/known_threads.h"
#include "gpipe/internal/graphs/stage_graphs.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::internal {

struct StageGraphs::BackwardGraph {
  LayoutKey layout;         // layout of the gradients that it takes
  variable_list gradients;  // where it reads them; undefined if there is none
  variable_list results;    // where it writes its results; not owned
  std::unique_ptr<DeviceGraph> graph;
};

// An output of a cell, once, even if it leaves by several ports.
struct StageGraphs::Output {
  size_t port;
  size_t item;
  at::Tensor tensor;  // where the graph writes it
  bool needs_grad;
};

// The graphs of one cell at a time: a forward, and a backward for what the forward has left in the
// slot's memory.
struct StageGraphs::Slot {
  Slot() = default;
  // Memory of the streams that were current at the recordings (inputs, gradients, and the seeds
  // that LibTorch keeps on the device for the generators) may be in use by replays on another
  // stream. The next owner of that memory must be ordered after these replays.
  ~Slot() {
    for (const c10::Stream& stream : made_on) {
      if (!used_on || stream == *used_on) continue;
      try {
        follow(stream, *used_on);
      } catch (...) {  // the device is broken, or the process ends
      }
    }
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  void note_recording_on(const c10::Stream& stream) {
    if (std::find(made_on.begin(), made_on.end(), stream) == made_on.end()) {
      made_on.push_back(stream);
    }
  }

  // Makes memory from which the forward takes inputs like these, and adds it to `memory`.
  void make_inputs(const std::vector<Packet>& like, std::vector<at::Tensor>& memory);

  c10::SmallVector<c10::Stream, 1> made_on;
  std::optional<c10::Stream> used_on;  // the stream of the last use
  std::atomic<bool> busy{false};       // whether a cell's backward may still come
  LayoutKey places;            // where the inputs begin in cache lines; micro-batches may differ
  std::vector<Packet> inputs;  // where the forward takes its inputs; a tensor that comes twice
                               // is one tensor
  std::vector<std::vector<at::Tensor>> fill;  // aliases of the inputs; undefined: nothing to copy
  DrawRecorder recorder;
  std::shared_ptr<GraphPool> pool;
  std::unique_ptr<DeviceGraph> forward;
  LayersResult recorded;  // autograd's graph of the forward, with what it has saved
  std::vector<Output> outputs;
  std::vector<ValueKind> kinds;                            // [port]
  std::vector<std::vector<int>> output_numbers;            // [port][item] in outputs; -1: undefined
  std::vector<std::pair<size_t, size_t>> input_gradients;  // port and item
  std::vector<torch::autograd::Edge> leaves;               // the accumulators of the leaves
  std::vector<at::Tensor> tensors;           // the stage's parameters, then its buffers
  size_t parameters = 0;                     // number of parameters in `tensors`
  std::vector<int64_t> versions;             // [tensor] at the recording
  std::vector<int64_t> versions_in_forward;  // [tensor] at the cell's forward
  std::vector<bool> counters;                // [tensor] whether it counts batches, in a batch norm
  bool has_backward = false;
  std::vector<std::unique_ptr<BackwardGraph>> backwards;
};

// Cells of one kind: shape, mode, and whatever else changes which kernels run.
struct StageGraphs::Entry {
  LayoutKey kind;
  int64_t last_used = 0;
  int64_t first_run = 0;  // number of the pipeline's run in which the kind first came
  int64_t plain_runs = 0;
  KnownThreads warm_threads;  // threads of plain runs
  int64_t draws = 0;
  bool has_loss = false;
  std::vector<std::shared_ptr<Slot>> slots;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_STAGE_GRAPHS_SLOT_H_
