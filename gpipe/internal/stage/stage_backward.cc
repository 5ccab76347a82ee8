// The backward half of Stage.
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/graphs/stage_graphs.h"
#include "gpipe/internal/offload/stage_offloads.h"
#include "gpipe/internal/stage/group_scope.h"
#include "gpipe/internal/stage/stage.h"
#include "gpipe/internal/stage/stage_walk.h"
#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::internal {
namespace {

std::vector<Packet> packet_of(at::Tensor tensor) {
  std::vector<Packet> packets(1);
  packets[0].items.emplace_back();
  packets[0].items[0].tensor = std::move(tensor);
  return packets;
}

bool any_defined(const std::vector<Packet>& gradients) {
  for (const Packet& packet : gradients) {
    for (const Item& item : packet.items) {
      if (item.tensor.defined()) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<Packet> Stage::backward(const RunContext& run, int64_t micro_batch,
                                    std::vector<Packet> gradients, Cell& cell,
                                    const BackwardTask& task) {
  for (Packet& packet : gradients) arrive(packet, device_);
  if (!boundary_.ports.tied_out.empty() && task.part != BackwardPart::kWeights) {
    tied_terms_.take(run, boundary_.ports, gradients, *task.leaf_sums);
  }
  RandomStreamsScope random_scope(&random_streams_, nullptr, nullptr,
                                  /*on_autograd_threads=*/!device_.is_cpu());

  if (graphs_ != nullptr) {
    graphs_->begin_backward(run.requested == nullptr && task.part == BackwardPart::kWhole);
  }
  GroupScope groups(run.plan, index_, micro_batch, task.part, task.group_sums);
  StageWalk walk(code_, device_,
                 {&random_streams_, run.plan.step_seed, run.plan.number_of(micro_batch),
                  layers_.front().index, &run.plan.model},
                 run, micro_batch, task);
  PutBuffersBack put_back(buffers_, layers_);
  const bool is_recomputed_early = cell.recompute && cell.recompute->done;
  if (task.part != BackwardPart::kWeights && cell.recompute && !is_recomputed_early) {
    drop_useless_graph(cell);
  }
  SavedBuffersScope saved(buffers_, layers_, cell.saved, others_in(run));
  if (task.part != BackwardPart::kWeights) {
    walk.take(*task.leaf_sums);
    if (cell.seed.defined()) gradients = packet_of(cell.seed);
    if (cell.loss) {
      const auto noted = note_made(run.offloads, index_, micro_batch);
      gradients = walk.run_loss(std::move(gradients), *cell.loss);
    }
    // If no gradient arrived, the loss does not use this branch, and a recompute would be useless.
    if (any_defined(gradients) && cell.recompute && !cell.recompute->done) {
      cell.graph = recompute(run, micro_batch, *cell.recompute);
    }
  }
  std::vector<Packet> result;
  try {
    const auto noted = note_made(run.offloads, index_, micro_batch);
    result = cell.graph.backward(std::move(gradients), walk.take_roots(), task.part, walk,
                                 code_.position());
  } catch (...) {
    if (!code_.runs_layer()) throw;
    rethrow_changed(layers_[code_.position()],
                    task.part == BackwardPart::kWeights || is_recomputed_early);
  }
  if (task.part == BackwardPart::kInputs && cell.recompute && !is_recomputed_early &&
      !cell.recompute->graph) {
    cell.saved = buffers_.saved(cell.held);
  }
  saved.finish();
  put_back.finish();
  groups.check_first_half();
  walk.hand_over_requested();
  if (task.part != BackwardPart::kWeights) {
    tied_terms_.send(run, boundary_.ports, result, *task.leaf_sums);
  }
  if (!run.keep_graph) {
    cell.recompute.reset();
    cell.held.clear();
    if (task.part != BackwardPart::kInputs) cell.saved.clear();
    cell.loss.reset();
    cell.seed.reset();
  } else if (cell.recompute) {
    if (cell.recompute->graph) {
      cell.recompute->graph = std::move(cell.graph);  // for the next use
    } else {
      cell.saved.clear();
    }
    cell.graph = CellGraph();  // the next backward makes it again
    cell.recompute->done = false;
  }
  return result;
}

}  // namespace gpipe::internal
