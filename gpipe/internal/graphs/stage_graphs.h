// StageGraphs: the graphs of kernels of one stage: when they are recorded, and what a replay takes
// and gives.
//
// A replayed cell looks to everybody else like any other: its graph of autograd has a single node
// (ReplayNode), which replays the backward. docs/design/graphs.md says why it is as it is.
#ifndef GPIPE_INTERNAL_GRAPHS_STAGE_GRAPHS_H_
#define GPIPE_INTERNAL_GRAPHS_STAGE_GRAPHS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/internal/boundary/layers_result.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/graphs/device_graph.h"
#include "gpipe/internal/graphs/graph_memory.h"
#include "gpipe/internal/graphs/known_threads.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/options.h"

namespace gpipe::internal {

// Guarantees: results are bitwise those of Layers::run. A stage that cannot be recorded runs
// without graphs from the first failure on, and the reason is logged once.
//
// Thread-safety: none, except that the nodes that run() leaves may be destroyed on any thread.
class StageGraphs : public std::enable_shared_from_this<StageGraphs> {
 public:
  // How Stage runs its layers.
  struct Layers {
    size_t count;
    RandomStreams& random_streams;
    // Calls of `run` consume the inputs unless `keep_inputs` (see Stage).
    std::function<LayersResult(std::vector<Packet>& inputs, bool keep_inputs)> run;
    std::function<void(LayersResult& result)> add_outputs;  // to the result's graph
    std::function<std::string()> current;                   // "layer 5 ('relu')"
  };

  StageGraphs(int64_t stage, c10::Device device);
  ~StageGraphs();

  // Called before the first cell of a run. Drops what was recorded with other parameters, buffers
  // or modes.
  void begin_run(const std::vector<Layer>& layers);
  // Called before each backward. `accumulates`: gradients of leaves go into their .grad at once, so
  // the replay's own memory may be lent for them.
  void begin_backward(bool accumulates) {
    lend_ = accumulates;
    is_warm_ = backward_threads_.add_this();
  }

  // Runs the layers of a cell, plainly or as a replay. The outputs are listed in the result's
  // graph. `has_loss`: a loss will be joined to that graph. Throws what Layers::run throws, and
  // what a replay throws.
  LayersResult run(const RunContext& run, int64_t micro_batch, std::vector<Packet>& inputs,
                   bool keep_inputs, bool has_loss, const Layers& layers);

  const GraphUse& use() const { return use_; }

  // A shape runs this many times without graphs, and in all of the first run of the pipeline that
  // has it, before it is recorded. LibTorch then chooses algorithms and makes work spaces, also for
  // backwards, and random numbers are counted. Handles of cuDNN and others, and these choices,
  // belong to a thread. So on another thread (a single stage runs on the caller's) the shape runs
  // once more without graphs.
  static constexpr int64_t kPlainRuns = 3;
  // If there are more shapes, modes and so on, the least recently used one is dropped...
  static constexpr size_t kMostKinds = 8;
  // ... and after so many drops shapes change too much for graphs.
  static constexpr int64_t kMostDrops = 32;

 private:
  using variable_list = torch::autograd::variable_list;
  struct Slot;
  struct Entry;
  struct BackwardGraph;
  struct Output;

  bool usable() const { return use_.reason.empty(); }
  void give_up(const std::string& reason);

  // The entry of the cell's kind, or null if the stage has just given up. Adds the places of the
  // inputs to `places`.
  Entry* entry_for(const RunContext& run, const std::vector<Packet>& inputs, bool has_loss,
                   LayoutKey& places);
  std::shared_ptr<Slot> record(const RunContext& run, Entry& entry, const LayoutKey& places,
                               const std::vector<Packet>& inputs, const Layers& layers);
  // Throws if the cell cannot be recorded. `place` is set to what was being recorded, for messages.
  std::shared_ptr<Slot> record_forward(const RunContext& run, const Entry& entry, LayoutKey places,
                                       const std::vector<Packet>& inputs, const Layers& layers,
                                       std::string& place);
  // check_unchanged() and examine() throw c10::Error if a replay could not stand for what was
  // recorded. `before`: the versions of the stage's tensors.
  void check_unchanged(const Slot& slot, const std::vector<int64_t>& before) const;
  void examine(const RunContext& run, const Entry& entry, Slot& slot) const;
  void check_leaves(const RunContext& run, const Slot& slot);
  // Runs the layers without graphs. Runs them again if memory runs out while another thread
  // records, unless something was changed by then. `draws` is set to the number of draws.
  LayersResult run_plainly(const RunContext& run, std::vector<Packet>& inputs, bool keep_inputs,
                           const Layers& layers, int64_t& draws);
  LayersResult replay(const RunContext& run, int64_t micro_batch, std::vector<Packet>& inputs,
                      bool keep_inputs, const std::shared_ptr<Slot>& slot, const Layers& layers);

  // Writes the outputs into the slot's memory.
  void replay_forward(const RunContext& run, int64_t micro_batch, const std::vector<Packet>& inputs,
                      Slot& slot);

  variable_list backward(Slot& slot, variable_list gradients);
  BackwardGraph* record_backward(Slot& slot, const variable_list& gradients);
  std::unique_ptr<BackwardGraph> recorded_backward(Slot& slot, const variable_list& gradients);
  // Runs the backward of the recorded forward kernel by kernel. The kernels are launched, or
  // recorded if a recording is under way.
  variable_list run_backward(Slot& slot, const variable_list& gradients) const;

  // Whether another stage of the process may record, although this stage does not.
  bool others_may_record() const;
  // Orders all that graphs have done so far before what the current stream does next.
  void use_current_stream();
  const c10::Stream& side_stream();
  const std::shared_ptr<GraphPool>& scratch();

  const int64_t stage_;
  const c10::Device device_;
  GraphDevice* const graphs_;
  GraphUse use_;
  int64_t drops_ = 0;
  int64_t clock_ = 0;  // counts uses of entries, to find the one that is unused longest
  int64_t runs_ = 0;   // number of runs that have begun
  bool lend_ = true;
  bool is_warm_ = false;  // whether the backward's thread has run a backward before
  KnownThreads backward_threads_;

  LayoutKey state_;                  // the layers' modules, parameters, buffers and modes
  std::vector<at::Tensor> tensors_;  // the layers' parameters_ parameters, then their buffers
  size_t parameters_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::optional<c10::Stream> stream_;  // the stream on which graphs were used last
  std::optional<c10::Stream> side_stream_;
  // Memory of the graphs whose results are used before the next replay: no later replay needs its
  // contents.
  std::shared_ptr<GraphPool> scratch_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_STAGE_GRAPHS_H_
