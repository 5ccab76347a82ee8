#include "gpipe/internal/run/pipeline.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <unordered_set>

#include "gpipe/internal/backward/foreign_nodes.h"
#include "gpipe/internal/boundary/ports.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/replicas/statistics.h"
#include "gpipe/internal/run/failure.h"
#include "gpipe/internal/run/group_gradients.h"
#include "gpipe/internal/run/packet_transport.h"
#include "gpipe/internal/run/staged_transport.h"
#include "gpipe/internal/tensors/finite.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/internal/threads/caller_state.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/internal/threads/device_context.h"
#include "gpipe/internal/threads/openmp_team.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/schedule/default_schedule.h"
#include "gpipe/schedule/routes.h"
#include "interception/interception.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

// To end and restart the OpenMP teams takes up to a millisecond. Where that would be more than a
// few percent of a run, the teams stay.
constexpr std::chrono::milliseconds kRunWorthATeam{20};

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

// The ties over devices, or else those over processes. There are never both: with several
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

// "in the forward of stage 1, micro-batch 3, layer 5 ('relu'), a torch::nn::ReLUImpl"
std::string place_of(const Action& action, bool recompute, const std::string& layer,
                     const std::string& layer_type) {
  const std::string what = recompute                                    ? "recompute"
                           : action.kind == ActionKind::kForward        ? "forward"
                           : action.kind == ActionKind::kWeightGradient ? "backward (of weights)"
                                                                        : "backward";
  const std::string stage = "stage " + std::to_string(action.stage);
  return "in the " + what + " of " + stage + ", micro-batch " + std::to_string(action.micro_batch) +
         (layer == stage ? "" : ", " + layer) + (layer_type.empty() ? "" : ", a " + layer_type);
}

// Parameters of other processes are on meta, where all values count as finite.
void check_finite_parameters(const ModelState& model, const std::string& when, bool gradients) {
  for (const ModelState::Parameter& parameter : model.parameters()) {
    const std::string name = text::in_quotes(parameter.name) + " ";
    check_finite(parameter.tensor, "the parameter " + name + when);
    if (gradients) check_finite(parameter.tensor.grad(), "the gradient (.grad) of " + name + when);
  }
}

BackwardPart part_of(ActionKind kind) {
  return kind == ActionKind::kInputGradient    ? BackwardPart::kInputs
         : kind == ActionKind::kWeightGradient ? BackwardPart::kWeights
                                               : BackwardPart::kWhole;
}

// Moves a stage's packets to its sends. Each packet has a send, except the first stage's input
// gradients and the last stage's outputs, which are for the caller.
void fill(std::vector<Packet>& sent, std::vector<Packet> packets) {
  for (size_t k = 0; k < std::min(sent.size(), packets.size()); ++k) {
    sent[k] = std::move(packets[k]);
  }
}

// An observer that adds to events what the executor does not know. `recomputes` is [stage].
Observer completing(const Observer& observer, std::vector<RecomputeTime>& recomputes) {
  static std::atomic<int64_t> runs{0};
  return [&observer, &recomputes, run = runs++](const Event& event) {
    RecomputeTime& recompute = recomputes[event.action.stage];
    if (event.edge == Event::Edge::kBegin) recompute = {};
    Event complete = event;
    complete.recompute_begin = recompute.begin;
    complete.recompute_end = recompute.end;
    complete.run = run;
    observer(complete);
  };
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
  const bool copies = world_.processes_each() > 1 ||
                      (world_.processes() != nullptr && world_.processes()->copies_within());
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
  // A single worker has nothing to overlap with, so it runs on the caller's thread. An exception is
  // a worker with its own number of intra-op threads: setting that in each run would, while the run
  // lasts, also change the number with which LibTorch starts new threads of the process.
  const bool inline_single = cpu_threads_per_stage == 0;
  pool_ = std::make_unique<WorkerPool>(
      static_cast<int64_t>(workers.size()),
      [&](int64_t thread) {
        worker_threads_[thread] = at::RecordFunction::currentThreadId();
        if (cpu_workers > 0) set_threads_of_this_thread(threads);
      },
      inline_single);
  // Static objects that the first run would make must exist before shut_at_exit(): objects that are
  // made later are destroyed earlier, while exit() still waits for workers.
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
        // A tied one belongs to the first layer that has it, also where that is elsewhere.
        if (seen.insert(parameter.unsafeGetTensorImpl()).second && here) local.push_back(parameter);
      }
    }
  }
  return local;
}

void Pipeline::check_callable() {
  run_lock_.check_process();
  late_checks_.look();
  for (const Stage& stage : stages_) {
    for (const Layer& layer : stage.layers()) {
      if (layer.skips.empty()) continue;
      const std::optional<std::string> moved = layer.skips.moved_skip();
      TORCH_CHECK_VALUE(!moved, "isolate() was called on ", layer_text(layer), ", a ",
                        readable_type(layer.module.type_info()),
                        ", after the pipeline was made, which reads the namespaces only then: ",
                        *moved, "; call isolate() before, or make a new pipeline");
    }
  }
}

std::string Pipeline::unregistered_leaf_text() {
  return unregistered_leaf_.take(
      [this](const at::Tensor& leaf) { return model_state().find(leaf) != nullptr; });
}

std::vector<GraphUse> Pipeline::graph_use() const {
  std::vector<GraphUse> uses;
  for (const Stage& stage : stages_) {
    if (std::optional<GraphUse> use = stage.graph_use()) uses.push_back(std::move(*use));
  }
  return uses;
}

std::optional<Failure> Pipeline::last_failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return last_failure_;
}

DeviceTies::Partitions Pipeline::partitions() const {
  DeviceTies::Partitions partitions;
  for (const Stage& stage : stages_) partitions.push_back(&stage.layers());
  return partitions;
}

ModelState Pipeline::model_state() const {
  return ModelState(partitions(), device_ties_.in_model());
}

Schedule Pipeline::fill_drain(int64_t micro_batches) const {
  return placed_fill_drain(Schedule::gpipe(stages(), micro_batches), placement_);
}

void Pipeline::run_forward(Pass& pass) {
  const RunLock::Scope scope(run_lock_);
  device_ties_.refresh(transfers_);
  // With a single micro-batch, outputs may be the model's own memory.
  if (pass.plan.record || pass.micro_batches() == 1) pass.plan.model = model_state();
  run(pass, fill_drain(std::max<int64_t>(pass.micro_batches(), 1)), Half::kForward, nullptr,
      nullptr);
  // A layer may have registered something in its first forward.
  if (pass.plan.record) pass.plan.model = model_state();
  commit_statistics(pass);
}

std::vector<Packet> Pipeline::run_backward(Pass& pass, BackwardRequest& request) {
  check_callable();
  check_backward_thread();
  const RunLock::Scope scope(run_lock_);
  check_unchanged(pass);
  TieCopies::note_gradients();
  run(pass, fill_drain(pass.micro_batches()), Half::kBackward, &request, nullptr);
  return std::exchange(pass.input_gradients, std::vector<Packet>(pass.micro_batches()));
}

void Pipeline::check_unchanged(Pass& pass) const {
  const std::optional<size_t> changed = pass.inputs.changed_by_caller();
  std::vector<bool> recomputing;
  for (const std::vector<Cell>& row : pass.cells) {
    recomputing.push_back(std::any_of(row.begin(), row.end(),
                                      [](const Cell& cell) { return cell.recompute.has_value(); }));
  }
  TORCH_CHECK(
      !changed || !recomputing.front(), "input ", changed.value_or(0),
      " of the pipeline was changed in place between forward and backward; the recompute of "
      "checkpointed micro-batches would start from the changed values and give wrong "
      "gradients. Change it after backward, give forward a clone(), or use "
      "Checkpoint::kNever");
  if (std::find(recomputing.begin(), recomputing.end(), true) == recomputing.end()) return;
  pass.plan.model.check_same(model_state(), recomputing);
}

void Pipeline::check_step(const Pass& pass, const Schedule& schedule, bool check_finite,
                          bool gradients) const {
  TORCH_CHECK_VALUE(pass.micro_batches() == 0 || schedule.micro_batches() == pass.micro_batches(),
                    "the schedule is for ", schedule.micro_batches(),
                    " micro-batches, but this mini-batch gives ", pass.micro_batches(),
                    "; give a ScheduleGenerator (Schedule::one_f_one_b, say) instead of a fixed "
                    "Schedule where batches vary");
  if (!check_finite) return;
  TORCH_CHECK_VALUE(graph_use().empty(),
                    "StepOptions::check_finite looks at each layer, but this pipeline launches "
                    "the kernels of its layers as a whole (GPipeOptions::graphs); make a pipeline "
                    "without graphs to find the layer");
  check_finite_parameters(pass.plan.model,
                          "before the step; was it loaded, or made by an "
                          "optimizer's step, from one that was not finite?",
                          gradients);
}

void Pipeline::run_step(Pass& pass, const Schedule& schedule, const Observer& observer,
                        bool check_finite) {
  check_backward_thread();
  const RunLock::Scope scope(run_lock_);
  device_ties_.refresh(transfers_);
  pass.plan.model = model_state();
  know_parameters(pass.plan.model);
  check_step(pass, schedule, check_finite, /*gradients=*/true);
  TieCopies::note_gradients();
  run(pass, schedule, Half::kBoth, nullptr, observer, check_finite);
  if (pass.plan.group_size > 0) {
    // This needs only the processes of the same stages, which are done about now. Processes of
    // earlier stages may not be done yet.
    GroupGradients gradients(pass.group_sums, model_state(), world_, pass.plan.groups_each);
    // Everything that may still fail comes before the first gradient is added.
    commit_statistics(pass);
    gradients.accumulate();
  }
  if (check_finite) {
    check_finite_parameters(pass.plan.model,
                            "after the step, although no term is: the sum is too "
                            "large for its type",
                            /*gradients=*/true);
  }
  if (pass.plan.group_size == 0) commit_statistics(pass);
}

void Pipeline::commit_statistics(Pass& pass) {
  if (!pass.plan.in_replicas || !pass.plan.defer_batch_norm) {
    return StatisticsLog::commit(pass.statistics);
  }
  std::vector<at::Tensor> buffers;
  for (const Stage& stage : stages_) {
    if (!residence_.has_stage(stage.index())) continue;
    for (const Layer& layer : stage.layers()) {
      for (const at::Tensor& buffer : layer.module.ptr()->buffers()) buffers.push_back(buffer);
    }
  }
  commit_over_replicas(world_, pass.statistics, buffers);
}

void Pipeline::run_evaluation(Pass& pass, const Schedule& schedule, const Observer& observer,
                              bool check_finite) {
  const RunLock::Scope scope(run_lock_);
  device_ties_.refresh(transfers_);
  pass.plan.model = model_state();
  check_step(pass, schedule, check_finite, /*gradients=*/false);
  run(pass, schedule, Half::kForward, nullptr, observer, check_finite);
  commit_statistics(pass);
}

// One run over the cells of a pass, as the workers see it.
struct Pipeline::Run {
  Pipeline& pipeline;
  Pass& pass;
  const BackwardRequest* request;
  const RunContext& context;

  // The Handler: see executor.h.
  void operator()(const Action& action, std::vector<Packet>& received,
                  std::vector<Packet>& sent) const {
    // A worker may run stages of several devices.
    const c10::Device device = pipeline.devices_[action.stage];
    enter_device(device);
    c10::OptionalDeviceGuard guard;
    if (!device.is_cpu()) guard.reset_device(device);
    Stage& stage = pipeline.stages_[action.stage];
    pipeline.actions_[action.stage] = action;
    stage.begin_action();
    StageWorkScope::begin_action(pipeline.works_[action.stage]);
    if (action.kind == ActionKind::kForward) {
      forward(action.stage, action.micro_batch, received, sent);
    } else {
      backward(action.stage, action.micro_batch, part_of(action.kind), received, sent);
    }
    stage.end_layers();
  }

  void forward(int64_t j, int64_t i, std::vector<Packet>& received,
               std::vector<Packet>& sent) const {
    const bool last = j + 1 == pipeline.stages();
    std::vector<Packet> inputs;
    if (j == 0) inputs.push_back(pass.inputs.micro_batch(i));
    for (Packet& packet : received) inputs.push_back(std::move(packet));
    std::vector<Packet> outputs =
        pipeline.stages_[j].forward(context, i, std::move(inputs), pass.cells[j][i],
                                    last && pass.loss ? &*pass.loss : nullptr, &pass.statistics[j]);
    if (last && pass.keep_outputs) pass.outputs[i] = std::move(outputs.front());
    fill(sent, std::move(outputs));
  }

  void backward(int64_t j, int64_t i, BackwardPart part, std::vector<Packet>& received,
                std::vector<Packet>& sent) const {
    std::vector<Packet> gradients;
    // Cut here, so that cutting overlaps with the work of other stages.
    if (request != nullptr && j + 1 == pipeline.stages()) {
      gradients.push_back(pass.mini_batch.cut_gradients(request->output_gradients, i));
    }
    for (Packet& packet : received) gradients.push_back(std::move(packet));
    if (pipeline.ablation_.early_recomputes && j + 1 == pipeline.stages() &&
        part != BackwardPart::kWeights) {
      for (int64_t k = 0; k < pass.micro_batches(); ++k) {
        pipeline.stages_[j].recompute_early(context, k, pass.cells[j][k]);
      }
    }
    std::vector<Packet> results =
        pipeline.stages_[j].backward(context, i, std::move(gradients), pass.cells[j][i],
                                     {part, &pass.leaf_sums[i], &pass.target_gradients[i],
                                      pass.plan.group_size > 0 ? &pass.group_sums[j] : nullptr});
    if (part == BackwardPart::kWeights) return;
    if (j == 0) pass.input_gradients[i] = results.empty() ? Packet() : std::move(results.front());
    fill(sent, std::move(results));
  }
};

void Pipeline::run(Pass& pass, const Schedule& schedule, Half half, BackwardRequest* request,
                   const Observer& observer, bool check_finite) {
  if (pass.micro_batches() == 0) return;                             // another replica has all rows
  ProgramCache::Compiled& compiled = programs_.get(schedule, half);  // refuses what users give
  TORCH_CHECK_VALUE(
      pass.plan.group_size == 0 || half == Half::kForward || compiled.sums_ascend,
      "GPipeOptions::groups, and replicas, need a schedule that adds up the gradients "
      "of micro-batches in their order, and this one does not: give one that is "
      "ascending (ScheduleFacts), as 1F1B and all generated schedules except Schedule::gpipe are "
      "(instead of that: \"fill-drain\" of schedule_by_name)");
  TORCH_INTERNAL_ASSERT(schedule.workers() <= placement_.workers());
  TrackedStatistics tracked(stages(), &statistics_use_);
  statistics_use_.forget_freed();
  for (Stage& stage : stages_) {
    if (!residence_.has_stage(stage.index())) continue;
    for (const Layer& layer : stage.layers()) tracked.add(stage.index(), *layer.module.ptr());
    stage.begin_run();
  }
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    last_failure_.reset();
  }
  const CallerState caller_state;
  const std::vector<c10::Stream> of_caller = streams_of_caller();
  if (pass.streams.empty()) pass.streams = of_caller;
  for (size_t k = 0; k < of_caller.size(); ++k) follow(pass.streams[k], of_caller[k]);
  device_ties_.begin_run(pass.streams);
  const DeviceTies::Scope tied(device_ties_, partitions());
  const bool on_caller = pool_->is_inline();
  ForeignNodes foreign;
  RunContext context{pass.plan,
                     compiled.follows_at_once,
                     compiled.forwards_ascend,
                     first_on_device_,
                     tracked,
                     foreign,
                     late_checks_,
                     transfers_,
                     worker_threads_};
  context.on_caller = on_caller;
  context.check_finite = check_finite;
  bool& may_use_foreign = may_use_foreign_[pass.plan.record ? 1 : 0];
  const bool watches = may_use_foreign && !foreign_tensors_.empty() && !devices_.front().is_meta();
  context.foreign_tensors = watches ? &foreign_tensors_ : nullptr;
  unregistered_leaf_.begin_run();
  context.unregistered = &unregistered_leaf_;
  if (request != nullptr) {
    context.keep_graph = request->keep_graph;
    context.requested = request->requested ? &*request->requested : nullptr;
  }
  ExecuteOptions options;
  if (world_.processes() != nullptr) options.placement = residence_.workers();
  std::vector<RecomputeTime> recomputes;
  Observer complete;
  if (observer) {
    recomputes.resize(stages());
    complete = completing(observer, recomputes);
    context.recomputes = &recomputes;
    options.observer = &complete;
  }
  const bool release_teams = !on_caller && workers_have_teams_ && last_run_ >= kRunWorthATeam;
  options.around = [&](int32_t worker, const std::function<void()>& steps) {
    std::optional<CallerStateScope> state;
    if (!on_caller) {
      // The floating-point mode stays until a caller comes with another one: to restore the former
      // mode would end the worker's OpenMP team after each run.
      caller_state.floats().apply();
      state.emplace(caller_state);
    }
    std::optional<OpenMpTeamRelease> team;
    if (release_teams) team.emplace();
    AutocastCacheOff no_cache;
    InterceptionScope interception;
    StreamScope streams(pass.streams,
                        devices_[compiled.program.workers[worker].front().action.stage]);
    StageWorkScope work(/*on_autograd_threads=*/!of_caller.empty());
    steps();
  };
  if (release_teams) release_openmp_team();
  const auto begin = std::chrono::steady_clock::now();
  std::optional<PacketTransport> within;
  std::unique_ptr<Processes::Run> beyond;
  std::optional<StagedTransport> staged;
  Transport<Packet>* transport = nullptr;
  if (world_.processes() == nullptr) {
    transport = &within.emplace(compiled.program, devices_, transfers_);
  } else {
    std::vector<int64_t> rank_of_worker = residence_.process_of_worker();
    std::vector<bool> is_beyond;                  // [worker]
    const c10::Device device = devices_.front();  // all stages of this process are on it
    for (int64_t& rank : rank_of_worker) {
      rank = world_.rank_of(world_.replica(), rank);
      is_beyond.push_back(rank != world_.rank() || world_.processes()->copies_within());
    }
    beyond = world_.processes()->begin_run(
        compiled.program, rank_of_worker, compiled.messages,
        [this](int64_t stage) { return stages_[stage].current_layer(); }, device);
    transport = beyond.get();
    if (!device.is_cpu()) {
      if (beyond->is_on_device()) is_beyond.assign(is_beyond.size(), false);
      transport = &staged.emplace(*beyond, std::move(is_beyond), device, transfers_);
    }
  }
  const std::optional<RunFailure> failure = execute<Packet>(
      *pool_, compiled.program, *transport, Run{*this, pass, request, context}, options);
  last_run_ = std::chrono::steady_clock::now() - begin;
  std::exception_ptr error;
  if (failure) error = describe(*failure);
  if (half != Half::kBackward) {
    try {
      pass.inputs.finish_forward();
    } catch (...) {  // a layer changed an input; an earlier error tells more
      if (!error) error = std::current_exception();
    }
  }
  if (!failure && beyond != nullptr) {
    try {
      beyond->finish();
    } catch (...) {  // another process failed in what it still had to do
      if (!error) error = std::current_exception();
    }
  }
  try {
    give_back(pass, request, of_caller);
  } catch (...) {  // an error of a broken device; an earlier error tells more
    if (!error) error = std::current_exception();
  }
  try {
    device_ties_.check_run(pass.plan.record);
    ties_.check_run(pass.plan.record);
  } catch (...) {  // an earlier error tells more
    if (!error) error = std::current_exception();
  }
  may_use_foreign = error != nullptr;
  pass.failed = error != nullptr;
  if (error) std::rethrow_exception(error);
}

std::exception_ptr Pipeline::describe(const RunFailure& failure) {
  if (!failure.action) return failure.error;
  Action action = *failure.action;
  if (const auto early = stages_[action.stage].early_recompute()) action.micro_batch = *early;
  // The stage has run nothing since.
  const Stage& stage = stages_[action.stage];
  const std::string layer = stage.current_layer();
  const std::string type = stage.current_layer_type();
  const bool recompute = stage.recomputing();
  std::optional<OutOfMemory> memory;
  if (is_out_of_memory(failure.error)) memory = works_[action.stage].out_of_memory();
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    last_failure_ = Failure{action.stage,
                            action.micro_batch,
                            action.kind != ActionKind::kForward,
                            recompute,
                            layer,
                            memory,
                            type};
  }
  std::string where = place_of(action, recompute, layer, type);
  if (memory) where += "; " + shortage_text(*memory);
  try {
    rethrow_with(failure.error, where);
  } catch (...) {
    return std::current_exception();
  }
}

std::vector<c10::Stream> Pipeline::streams_of_caller() const {
  std::vector<c10::Stream> streams;
  for (int64_t j = 0; j < stages(); ++j) {
    const c10::DeviceType type = stages_[j].device().type();
    const bool known = std::any_of(stages_.begin(), stages_.begin() + j, [&](const Stage& before) {
      return before.device().type() == type;
    });
    if (known) continue;
    for (const c10::Stream& stream : current_streams(type)) streams.push_back(stream);
  }
  return streams;
}

void Pipeline::check_backward_thread() const {
  const bool on_cpu = std::all_of(stages_.begin(), stages_.end(),
                                  [](const Stage& stage) { return stage.device().is_cpu(); });
  TORCH_CHECK(
      on_cpu || c10::getThreadName().rfind("pt_autograd_", 0) != 0,
      "a pipeline's backward was called inside another backward, on autograd's own thread "
      "of a device (in a custom function or a hook). The stages' custom functions need that "
      "thread, and would wait for it forever. Call it outside, or from another thread that "
      "nobody waits for there");
}

void Pipeline::give_back(const Pass& pass, const BackwardRequest* request,
                         const std::vector<c10::Stream>& of_caller) {
  device_ties_.end_run(pass.streams);
  for (size_t k = 0; k < of_caller.size(); ++k) {
    transfers_.let_follow(pass.streams[k]);
    follow(of_caller[k], pass.streams[k]);
  }
  // The gradients were made on the stages' streams and are read on the caller's.
  auto use_here = [](const at::Tensor& gradient) {
    if (gradient.defined()) use_on(gradient, current_stream(gradient.device()));
  };
  for (const Packet& packet : pass.input_gradients) {
    for (const Item& item : packet.items) use_here(item.tensor);
  }
  if (request == nullptr || !request->requested) return;
  for (const at::Tensor& sum : request->requested->sums) use_here(sum);
}

}  // namespace gpipe::internal
