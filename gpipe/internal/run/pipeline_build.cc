#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>
#include <c10/util/env.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>
#include <utility>

#include "gpipe/internal/boundary/ports.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/run/action_place.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/run/run_transport.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/internal/threads/device_context.h"
#include "gpipe/internal/threads/stage_work.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/schedule/routes.h"

namespace gpipe::internal {
namespace {

// For exit() on a thread that autograd uses on behalf of a stage, say in a hook of a layer: the
// stage waits for that thread. So would the engine's destructor, which waits 10 s for its threads.
bool prepare_exit() {
  if (StageWork::current() == nullptr) return false;
  c10::utils::set_env("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0", /*overwrite=*/false);
  return true;
}

Routes routes_of(int64_t stages, const std::vector<skip::SkipEdge>& skips,
                 const std::vector<TiedParameter>& tied, const std::vector<TiedEdge>& edges) {
  std::vector<Route> routes;
  routes.reserve(skips.size());
  for (const skip::SkipEdge& edge : skips) {
    routes.push_back({edge.source_partition, edge.target_partition, edge.key.to_text()});
  }
  for (const TiedEdge& edge : edges) {
    routes.push_back({static_cast<int32_t>(edge.source_stage),
                      static_cast<int32_t>(edge.target_stage),
                      "tied " + tied[edge.parameter].name});
  }
  return Routes::create(stages, std::move(routes));
}

// The parameters tied over devices, or else those tied over processes. There are never both: with
// several processes, all stages of a process are on one device.
const std::vector<TiedParameter>& parameters_over(const TiedOverProcesses& processes,
                                                  const TiedOverDevices& devices) {
  return devices.parameters().empty() ? processes.parameters() : devices.parameters();
}
const std::vector<TiedEdge>& edges_over(const TiedOverProcesses& processes,
                                        const TiedOverDevices& devices) {
  return devices.parameters().empty() ? processes.edges() : devices.edges();
}

RemoteTensors remote_tensors_of(const std::vector<std::vector<Layer>>& partitions,
                                const StageMap& stage_map, int64_t process) {
  RemoteTensors remote(process);
  for (size_t stage = 0; stage < partitions.size(); ++stage) {
    const auto number = static_cast<int64_t>(stage);
    if (stage_map.has_stage(number)) continue;
    for (const Layer& layer : partitions[stage]) {
      remote.add(layer, stage_map.process_of_stage(number));
    }
  }
  return remote;
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
      stage_map_(placement, world_.process(), world_.processes_each()),
      tied_over_processes_(tied_parameters_of(partitions, places_of(stage_map_, partitions.size())),
                           stage_map_, partitions.size(), world_, devices.front()),
      late_registrations_(partitions, stage_map_, world_),
      remote_tensors_(remote_tensors_of(partitions, stage_map_, world_.process())),
      tied_over_devices_(partitions, devices),
      ablation_(ablation),
      devices_(std::move(devices)),
      transfers_(ablation.copy_streams),
      run_lock_(tied_over_devices_.run_lock()),
      programs_(routes_of(static_cast<int64_t>(partitions.size()), skips_of(layout, ablation),
                          parameters_over(tied_over_processes_, tied_over_devices_),
                          edges_over(tied_over_processes_, tied_over_devices_))) {
  const int64_t stages = static_cast<int64_t>(partitions.size());
  const std::vector<skip::SkipEdge> skips = skips_of(layout, ablation);
  std::vector<at::Tensor> tied;
  for (const TiedParameter& each : parameters_over(tied_over_processes_, tied_over_devices_))
    tied.push_back(each.tensor);
  std::vector<size_t> parameter_of_edge;
  for (const TiedEdge& edge : edges_over(tied_over_processes_, tied_over_devices_))
    parameter_of_edge.push_back(edge.parameter);
  const std::vector<int64_t>& processes = stage_map_.process_of_worker();
  const bool copies = std::any_of(processes.begin(), processes.end(),
                                  [&](int64_t process) { return is_beyond(world_, process); });
  stages_.reserve(stages);
  for (int64_t j = 0; j < stages; ++j) {
    stages_.emplace_back(j, devices_[j], std::move(partitions[j]),
                         ports_of(j, programs_.routes(), skips, parameter_of_edge), copies, tied);
    if (graphs) stages_.back().use_graphs();
    int64_t first = j;
    for (int64_t k = j - 1; k >= 0; --k) {
      const bool here = stage_map_.process_of_stage(k) == stage_map_.process_of_stage(j);
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
  const std::vector<int32_t>& workers = stage_map_.workers();
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
  set_exit_preparation(&prepare_exit);
  static std::atomic<bool> has_devices{false};
  shut_at_exit(/*in_any_case=*/!on_cpu_alone && !has_devices.exchange(true));
  if (world_.processes_each() > 1) {
    known_parameters_.emplace();
    know_parameters(model_state());
  }
}

void Pipeline::know_parameters(const ModelState& model) {
  if (!known_parameters_) return;
  std::vector<at::Tensor> here;
  for (const ModelState::Parameter& parameter : model.parameters()) {
    const bool is_here = stage_map_.has_stage(parameter.stages.front());
    if (is_here && remote_tensors_.any_trained()) here.push_back(parameter.tensor);
  }
  known_parameters_->know(here);
}

std::vector<at::Tensor> Pipeline::local_parameters() const {
  std::vector<at::Tensor> local;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const Stage& stage : stages_) {
    const bool here = stage_map_.has_stage(stage.index());
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

TiedOverDevices::Partitions Pipeline::partitions() const {
  TiedOverDevices::Partitions partitions;
  for (const Stage& stage : stages_) partitions.push_back(&stage.layers());
  return partitions;
}

ModelState Pipeline::model_state() const {
  return ModelState(partitions(), tied_over_devices_.in_model());
}

}  // namespace gpipe::internal
