// The recomputes of Stage: the forward of a checkpointed cell again, before its backward.
#include <c10/core/GradMode.h>

#include <utility>

#include "gpipe/checkpoint_phase.h"
#include "gpipe/internal/boundary/staying.h"
#include "gpipe/internal/cell/late_checks.h"
#include "gpipe/internal/cell/recompute_check.h"
#include "gpipe/internal/stage/stage.h"
#include "gpipe/internal/threads/caller_state.h"
#include "interception/interception.h"

namespace gpipe::internal {

void Stage::drop_useless_graph(Cell& cell) {
  Cell::Recompute& kept = *cell.recompute;
  if (!kept.graph || LayerBuffers::may_use_graph(kept.buffers, cell.saved)) return;
  kept.graph.reset();
  cell.saved.clear();
}

CellGraph Stage::recompute(const RunContext& run, int64_t micro_batch, Cell::Recompute& kept) {
  const RecomputeTimer timer(run, index_);
  recomputing_ = true;
  check_kept(index_, kept.inputs, "between its forward and its recompute",
             [this] { return current_layer(); });
  run.plan.model.check_parameters(index_);
  if (kept.graph) {
    recomputing_ = false;
    return std::exchange(*kept.graph, CellGraph());
  }
  std::vector<Packet> copy;
  if (run.keep_graph) copy = kept.inputs;
  CallerStateScope state(run.plan.forward_state);
  AutocastCacheOff no_cache;
  InterceptionScope mode;
  c10::AutoGradMode grad_mode(true);
  CheckpointPhaseScope phase(CheckpointPhase::kRecomputing);
  RunningStatisticsScope statistics(RunningStatistics::kKeep, run.tracked, nullptr,
                                    run.plan.number_of(micro_batch),
                                    run.plan.defer_batch_norm || may_run_in_any_order(run), index_);
  kept.given.next = 0;
  buffers_.begin_recompute(layers_, kept.buffers, others_in(run));
  Result result = run_layers(run, micro_batch, run.keep_graph ? copy : kept.inputs,
                             /*keep_inputs=*/false, &kept.given);
  const bool is_same =
      is_same_recompute(run, index_, fingerprints_of(result.outputs), kept.fingerprints);
  code_.leave();
  if (!is_same) refuse_recompute(index_, "");
  buffers_.check_recompute(layers_, later_check(run));
  recomputing_ = false;
  return std::move(result.graph);
}

void Stage::recompute_early(const RunContext& run, int64_t micro_batch, Cell& cell) {
  if (!cell.recompute || cell.recompute->done) return;
  early_recompute_ = static_cast<int32_t>(micro_batch);
  RandomStreamsScope random_scope(&random_streams_, nullptr);
  PutBuffersBack put_back(buffers_, layers_);
  drop_useless_graph(cell);
  cell.graph = recompute(run, micro_batch, *cell.recompute);
  if (!cell.recompute->graph) cell.saved = buffers_.saved(cell.held);
  put_back.finish();
  cell.recompute->done = true;
  early_recompute_.reset();
}

}  // namespace gpipe::internal
