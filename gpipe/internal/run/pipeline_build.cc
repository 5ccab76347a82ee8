#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "gpipe/internal/boundary/ports.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/run/action_place.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/run/run_transport.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/internal/threads/device_context.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/schedule/routes.h"

namespace gpipe::internal {
namespace {

Routes routes_of(int64_t stages, const std::vector<skip::SkipEdge>& skips,
                 const std::vector<Tie>& ties, const std::vector<TieEdge>& edges) {
  std::vector<Route> routes;
  routes.reserve(skips.size());
  for (const skip::SkipEdge& edge : skips) {
    routes.push_back({edge.source_partition, edge.target_partition, edge.key.to_text()});
  }
  for (const TieEdge& edge : edges) {
    routes.push_back({static_cast<int32_t>(edge.source_stage),
                      static_cast<int32_t>(edge.target_stage), "tied " + ties[edge.tie].name});
  }
  return Routes::create(stages, std::move(routes));
}

// The ties between devices, or else the ties between processes. There are never both: with several
// processes, all stages of a process are on one device.
const std::vector<Tie>& ties_over(const TieCopies& processes, const DeviceTies& devices) {
  return devices.ties().empty() ? processes.ties() : devices.ties();
}
const std::vector<TieEdge>& edges_over(const TieCopies& processes, const DeviceTies& devices) {
  return devices.ties().empty() ? processes.edges() : devices.edges();
}

ForeignTensors foreign_tensors_of(const std::vector<std::vector<Layer>>& partitions,
                                  const Residence& residence, int64_t process) {
  ForeignTensors foreign(process);
  for (size_t stage = 0; stage < partitions.size(); ++stage) {
    const auto number = static_cast<int64_t>(stage);
    if (residence.has_stage(number)) continue;
    for (const Layer& layer : partitions[stage]) {
      foreign.add(layer, residence.process_of_stage(number));
    }
  }
  return foreign;
}

std::vector<skip::SkipEdge> skips_of(const skip::Layout& layout, const Ablation& ablation) {
  return ablation.direct_skips ? layout.crossing() : hops(layout.crossing());
}

}  // namespace

Pipeline::Pipeline(std::vector<std::vector<Layer>> partitions, std::vector<c10::Device> devices,
                   const skip::Layout& layout, int64_t cpu_threads_per_stage,
                   const Placement& placement, const Ablation& ablation, bool graphs, World world)
    : placement_(placement),
      world_(std::move(world)),
      residence_(placement, world_.process(), world_.processes_each()),
      ties_(ties_of(partitions, places_of(residence_, partitions.size())), residence_,
            partitions.size(), world_, devices.front()),
      late_registrations_(partitions, residence_, world_),
      foreign_tensors_(foreign_tensors_of(partitions, residence_, world_.process())),
      device_ties_(partitions, devices),
      ablation_(ablation),
      devices_(std::move(devices)),
      transfers_(ablation.copy_streams),
      run_lock_(device_ties_.run_lock()),
      programs_(routes_of(static_cast<int64_t>(partitions.size()), skips_of(layout, ablation),
                          ties_over(ties_, device_ties_), edges_over(ties_, device_ties_))) {
  const int64_t stages = static_cast<int64_t>(partitions.size());
  const std::vector<skip::SkipEdge> skips = skips_of(layout, ablation);
  std::vector<at::Tensor> ties;
  for (const Tie& tie : ties_over(ties_, device_ties_)) ties.push_back(tie.tensor);
  std::vector<size_t> tie_of_edge;
  for (const TieEdge& edge : edges_over(ties_, device_ties_)) tie_of_edge.push_back(edge.tie);
  const std::vector<int64_t>& processes = residence_.process_of_worker();
  const bool copies = std::any_of(processes.begin(), processes.end(),
                                  [&](int64_t process) { return is_beyond(world_, process); });
  stages_.reserve(stages);
  for (int64_t j = 0; j < stages; ++j) {
    stages_.emplace_back(j, devices_[j], std::move(partitions[j]),
                         ports_of(j, programs_.routes(), skips, tie_of_edge), copies, ties);
    if (graphs) stages_.back().use_graphs();
    int64_t first = j;
    for (int64_t k = j - 1; k >= 0; --k) {
      const bool here = residence_.process_of_stage(k) == residence_.process_of_stage(j);
      if (here && devices_[k] == devices_[j]) first = k;
    }
    first_on_device_.push_back(first);
    actions_.push_back({ActionKind::kForward, static_cast<int32_t>(j), 0});
    works_.emplace_back(StageId{this, j}, [this, j] {
      const Stage& stage = stages_[j];
      return place_of(actions_[j], stage.recomputing(), stage.current_layer(),
                      stage.current_layer_type());
    });
  }
  const std::vector<int32_t>& workers = residence_.workers();
  const int64_t cpu_workers = workers_on_cpu(placement, workers, devices_);
  const int64_t threads = share_of_cpu_threads(cpu_threads_per_stage, cpu_workers);
  workers_have_teams_ = cpu_workers > 0 && threads > 1;
  const DefaultThreadsScope of_the_caller;
  worker_threads_.resize(workers.size());
  // A single worker has nothing to overlap with, so it runs on the caller's thread, unless it has
  // its own number of intra-op threads. Setting that number in each run would, while the run lasts,
  // also change the number with which LibTorch starts new threads of the process.
  const bool inline_single = cpu_threads_per_stage == 0;
  pool_ = std::make_unique<WorkerPool>(
      static_cast<int64_t>(workers.size()),
      [&](int64_t thread) {
        worker_threads_[thread] = at::RecordFunction::currentThreadId();
        if (cpu_workers > 0) set_threads_of_this_thread(threads);
      },
      inline_single);
  // Static objects that the first run would make must exist before shut_at_exit(): objects that are
  // made later are destroyed earlier, while exit() still waits for workers. The engine's destructor
  // ends the threads on which backwards of devices run, and for which workers wait.
  (void)torch::autograd::Engine::get_default_engine();
  const bool on_cpu_alone =
      std::all_of(devices_.begin(), devices_.end(), [](c10::Device d) { return d.is_cpu(); });
  if (!on_cpu_alone) (void)at::getAccelerator(/*checked=*/false);
  if (std::any_of(devices_.begin(), devices_.end(), [](c10::Device d) { return d.is_cuda(); })) {
    watch_cuda_memory();
  }
  shut_at_exit();
  if (world_.processes_each() > 1) {
    known_parameters_.emplace();
    know_parameters(model_state());
  }
}

void Pipeline::know_parameters(const ModelState& model) {
  if (!known_parameters_) return;
  std::vector<at::Tensor> here;
  for (const ModelState::Parameter& parameter : model.parameters()) {
    const bool is_here = residence_.has_stage(parameter.stages.front());
    if (is_here && foreign_tensors_.any_trained()) here.push_back(parameter.tensor);
  }
  known_parameters_->know(here);
}

std::vector<at::Tensor> Pipeline::local_parameters() const {
  std::vector<at::Tensor> local;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const Stage& stage : stages_) {
    const bool here = residence_.has_stage(stage.index());
    for (const Layer& layer : stage.layers()) {
      for (const at::Tensor& parameter : layer.module.ptr()->parameters()) {
        // A tied parameter belongs to the first layer that has it, even if that layer is in another
        // process.
        if (seen.insert(parameter.unsafeGetTensorImpl()).second && here) local.push_back(parameter);
      }
    }
  }
  return local;
}

std::vector<GraphUse> Pipeline::graph_use() const {
  std::vector<GraphUse> uses;
  for (const Stage& stage : stages_) {
    if (std::optional<GraphUse> use = stage.graph_use()) uses.push_back(std::move(*use));
  }
  return uses;
}

DeviceTies::Partitions Pipeline::partitions() const {
  DeviceTies::Partitions partitions;
  for (const Stage& stage : stages_) partitions.push_back(&stage.layers());
  return partitions;
}

ModelState Pipeline::model_state() const {
  return ModelState(partitions(), device_ties_.in_model());
}

}  // namespace gpipe::internal
