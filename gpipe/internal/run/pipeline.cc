#include "gpipe/internal/run/pipeline.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "gpipe/internal/backward/foreign_nodes.h"
#include "gpipe/internal/offload/stage_offloads.h"
#include "gpipe/internal/replicas/statistics.h"
#include "gpipe/internal/run/group_gradients.h"
#include "gpipe/internal/run/run_transport.h"
#include "gpipe/internal/threads/caller_state.h"
#include "gpipe/internal/threads/device_context.h"
#include "gpipe/internal/threads/openmp_team.h"
#include "gpipe/runtime/running_code.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

// Ending and restarting the OpenMP teams takes up to a millisecond. If that would be more than a
// few percent of a run, the teams stay.
constexpr std::chrono::milliseconds kRunWorthATeam{20};

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

// An observer that passes events on, after it has added the data that the executor does not know.
// `recomputes`: [stage]. If the observer throws, `threw_in` becomes the stage, unless the action
// has thrown, which tells more.
Observer completing(const Observer& observer, std::vector<RecomputeTime>& recomputes,
                    std::atomic<int64_t>& threw_in) {
  static std::atomic<int64_t> runs{0};
  return [&observer, &recomputes, &threw_in, run = runs++](const Event& event) {
    RecomputeTime& recompute = recomputes[event.action.stage];
    if (event.edge == Event::Edge::kBegin) recompute = {};
    Event complete = event;
    complete.recompute_begin = recompute.begin;
    complete.recompute_end = recompute.end;
    complete.run = run;
    try {
      observer(complete);
    } catch (...) {
      if (!event.failed) threw_in = event.action.stage;
      throw;
    }
  };
}

// Runs a worker's steps. `caller`: the state that the thread takes over; null if it is the caller's
// own. `streams`: those of the run; none if all stages are on the CPU. `device`: that of the
// worker's first action.
void run_steps(const std::function<void()>& steps, const CallerState* caller, bool release_team,
               const std::vector<c10::Stream>& streams, c10::Device device) {
  std::optional<CallerStateScope> state;
  if (caller != nullptr) {
    // The floating-point mode stays until a caller comes with another mode. Restoring the former
    // mode would end the worker's OpenMP team after each run.
    caller->floats().apply();
    state.emplace(*caller);
  }
  std::optional<OpenMpTeamRelease> team;
  if (release_team) team.emplace();
  const AutocastCacheOff no_cache;
  const InterceptionScope interception;
  const StreamScope on_streams(streams, device);
  const StageWorkScope work(/*on_autograd_threads=*/!streams.empty());
  steps();
}

}  // namespace

void Pipeline::run_step(Pass& pass, const Schedule& schedule, const Observer& observer,
                        bool check_finite) {
  check_backward_thread();
  const RunLock::Scope scope(run_lock_);
  tied_over_devices_.refresh(transfers_);
  pass.plan.model = model_state();
  know_parameters(pass.plan.model);
  check_step(pass, schedule, check_finite, /*gradients=*/true);
  TiedOverProcesses::note_gradients();
  run(pass, schedule, Half::kBoth, nullptr, observer, check_finite);
  if (pass.plan.group_size > 0) {
    // GroupGradients needs only the processes of the same stages, which finish at about this time.
    // Processes of earlier stages may still be computing.
    GroupGradients gradients(pass.group_sums, model_state(), world_, pass.plan.groups_each);
    // Everything that may still fail comes before the first gradient is added.
    commit_statistics(pass);
    gradients.accumulate();
  }
  if (check_finite) check_after_step(pass);
  if (pass.plan.group_size == 0) commit_statistics(pass);
}

void Pipeline::commit_statistics(Pass& pass) {
  if (!pass.plan.in_replicas || !pass.plan.defer_batch_norm) {
    return StatisticsLog::commit(pass.statistics);
  }
  std::vector<at::Tensor> buffers;
  for (const Stage& stage : stages_) {
    if (!stage_map_.has_stage(stage.index())) continue;
    for (const Layer& layer : stage.layers()) {
      for (const at::Tensor& buffer : layer.module.ptr()->buffers()) buffers.push_back(buffer);
    }
  }
  commit_over_replicas(world_, pass.statistics, buffers);
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
    // Each action sets its device, because a worker may run stages of several devices.
    const c10::Device device = pipeline.devices_[action.stage];
    enter_device(device);
    c10::OptionalDeviceGuard guard;
    if (!device.is_cpu()) guard.reset_device(device);
    Stage& stage = pipeline.stages_[action.stage];
    pipeline.actions_[action.stage] = action;
    const RunningCode::Action running(stage.running_code());
    stage.begin_action();
    StageWorkScope::begin_action(pipeline.works_[action.stage]);
    StageOffloads* const offloads =
        context.offloads == nullptr ? nullptr : (*context.offloads)[action.stage].get();
    switch (action.kind) {
      case ActionKind::kForward:
        forward(action.stage, action.micro_batch, received, sent);
        break;
      case ActionKind::kOffload:
        offloads->offload(action.micro_batch);
        break;
      case ActionKind::kReload:
        offloads->reload(action.micro_batch);
        break;
      default:
        if (offloads != nullptr) offloads->arrive(action.micro_batch);
        backward(action.stage, action.micro_batch, part_of(action.kind), received, sent);
    }
    stage.end_layers();
  }

  // Lets what the cell holds go to the host if the schedule says so. `results`: what others get.
  void depart(ActionKind kind, int64_t j, int64_t i, const std::vector<Packet>& results) const {
    if (context.offloads == nullptr || (*context.offloads)[j] == nullptr) return;
    std::vector<at::Tensor> held;
    const auto hold = [&held](const Packet& packet) {
      for (const Item& item : packet.items) held.push_back(item.tensor);
    };
    for (const Packet& packet : results) hold(packet);
    hold(pass.target_gradients[i]);
    // A layer may have registered a tensor in this call, or have run a backward of its own.
    for (const Layer& layer : pipeline.stages_[j].layers()) {
      for (const at::Tensor& tensor : layer.module.ptr()->parameters()) {
        held.push_back(tensor);
        // Other stages of a tied parameter may be writing its .grad.
        const ModelState::Parameter* const known = pass.plan.model.find(tensor);
        if (known != nullptr && known->stages.size() == 1 && tensor.is_leaf()) {
          held.push_back(tensor.grad());
        }
      }
      for (const at::Tensor& tensor : layer.module.ptr()->buffers()) held.push_back(tensor);
    }
    std::vector<const at::Tensor*> kept;
    if (pass.cells[j][i].recompute) {
      for (const Packet& packet : pass.cells[j][i].recompute->inputs) {
        for (const Item& item : packet.items) kept.push_back(&item.tensor);
      }
    }
    const Action action{kind, static_cast<int32_t>(j), static_cast<int32_t>(i)};
    (*context.offloads)[j]->depart(action, held, kept);
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
    depart(ActionKind::kForward, j, i, outputs);
    if (last && pass.keep_outputs) pass.outputs[i] = std::move(outputs.front());
    fill(sent, std::move(outputs));
  }

  void backward(int64_t j, int64_t i, BackwardPart part, std::vector<Packet>& received,
                std::vector<Packet>& sent) const {
    std::vector<Packet> gradients;
    // The gradients are cut here, so that cutting overlaps with the work of other stages.
    if (request != nullptr && j + 1 == pipeline.stages()) {
      gradients.push_back(pass.mini_batch.slice_gradients(request->output_gradients, i));
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
    // Terms for leaves of other stages may be what the cell's graph holds, too.
    if (part == BackwardPart::kInputs && pass.leaf_sums[i].empty()) {
      depart(ActionKind::kInputGradient, j, i, results);
    }
    if (part == BackwardPart::kWeights) return;
    if (j == 0) pass.input_gradients[i] = results.empty() ? Packet() : std::move(results.front());
    fill(sent, std::move(results));
  }
};

void Pipeline::run(Pass& pass, const Schedule& schedule, Half half, BackwardRequest* request,
                   const Observer& observer, bool check_finite) {
  if (pass.micro_batches() == 0) return;                             // other replicas have all rows
  ProgramCache::Compiled& compiled = programs_.get(schedule, half);  // refuses invalid schedules
  check_sums(pass, half, compiled);
  TORCH_INTERNAL_ASSERT(schedule.workers() <= placement_.workers());
  TrackedStatistics tracked(stages(), &statistics_use_);
  begin_stages(tracked);
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    last_failure_.reset();
  }
  const CallerState caller_state;
  const std::vector<c10::Stream> of_caller = streams_of_caller();
  if (pass.streams.empty()) pass.streams = of_caller;
  for (size_t k = 0; k < of_caller.size(); ++k) follow(pass.streams[k], of_caller[k]);
  tied_over_devices_.begin_run(pass.streams);
  const TiedOverDevices::Scope tied(tied_over_devices_, partitions());
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
  if (half == Half::kBoth) begin_offloads(schedule, context);
  bool& may_use_remote = may_use_remote_[pass.plan.record ? 1 : 0];
  const bool watches = may_use_remote && !remote_tensors_.empty() && !devices_.front().is_meta();
  context.remote_tensors = watches ? &remote_tensors_ : nullptr;
  unregistered_leaf_.begin_run();
  context.unregistered = &unregistered_leaf_;
  if (request != nullptr) {
    context.keep_graph = request->keep_graph;
    context.requested = request->requested ? &*request->requested : nullptr;
  }
  ExecuteOptions options;
  if (world_.processes() != nullptr) options.placement = stage_map_.workers();
  std::vector<RecomputeTime> recomputes;
  Observer complete;
  std::atomic<int64_t> observer_threw_in{-1};
  if (observer) {
    recomputes.resize(stages());
    complete = completing(observer, recomputes, observer_threw_in);
    context.recomputes = &recomputes;
    options.observer = &complete;
  }
  const bool release_teams = !on_caller && workers_have_teams_ && last_run_ >= kRunWorthATeam;
  options.around = [&](int32_t worker, const std::function<void()>& steps) {
    run_steps(steps, on_caller ? nullptr : &caller_state, release_teams, pass.streams,
              devices_[compiled.program.workers[worker].front().action.stage]);
  };
  if (release_teams) release_openmp_team();
  const auto begin = std::chrono::steady_clock::now();
  const auto what_runs = [&](int64_t stage) -> std::string {
    if (observer_threw_in == stage) return "the observer of StepOptions::on_event";
    const std::string layer = stages_[stage].current_layer();
    return layer == "stage " + std::to_string(stage) ? "" : layer;  // "": none of its layers
  };
  RunTransport transport(compiled, world_, stage_map_, devices_, transfers_, what_runs);
  const std::optional<RunFailure> failure = execute<Packet>(
      *pool_, compiled.program, transport.get(), Run{*this, pass, request, context}, options);
  last_run_ = std::chrono::steady_clock::now() - begin;
  if (context.offloads != nullptr) {
    for (const auto& stage : *context.offloads) {
      if (stage != nullptr) stage->end_run();
    }
  }
  const std::exception_ptr error = end_run(pass, half, request, of_caller, transport, failure);
  may_use_remote = error != nullptr;
  pass.failed = error != nullptr;
  if (error) std::rethrow_exception(error);
}

void Pipeline::begin_stages(TrackedStatistics& tracked) {
  statistics_use_.forget_freed();
  for (Stage& stage : stages_) {
    if (!stage_map_.has_stage(stage.index())) continue;
    for (const Layer& layer : stage.layers()) tracked.add(stage.index(), *layer.module.ptr());
    stage.begin_run();
  }
}

void Pipeline::begin_offloads(const Schedule& schedule, RunContext& context) {
  if (!has_offloads(schedule)) return;
  if (offloads_ == nullptr) {
    offloads_ = std::make_shared<Offloads>(stages());
    for (int64_t j = 0; j < stages(); ++j) {
      if (!stage_map_.has_stage(j) || devices_[j].is_cpu()) continue;
      (*offloads_)[j] = std::make_unique<StageOffloads>(devices_[j]);
    }
  }
  for (int64_t j = 0; j < stages(); ++j) {
    if ((*offloads_)[j] != nullptr) (*offloads_)[j]->begin_run(j, schedule);
  }
  context.offloads = offloads_.get();
}

std::exception_ptr Pipeline::end_run(Pass& pass, Half half, const BackwardRequest* request,
                                     const std::vector<c10::Stream>& of_caller,
                                     RunTransport& transport,
                                     const std::optional<RunFailure>& failure) {
  std::exception_ptr error;
  if (failure) error = describe(*failure);
  if (half != Half::kBackward) {
    try {
      pass.inputs.finish_forward();
    } catch (...) {  // a layer changed an input; an earlier error says more
      if (!error) error = std::current_exception();
    }
  }
  if (!failure) {
    try {
      transport.finish();
    } catch (...) {  // another process failed in the rest of its work
      if (!error) error = std::current_exception();
    }
  }
  try {
    give_back(pass, request, of_caller);
  } catch (...) {  // the device is broken; an earlier error says more
    if (!error) error = std::current_exception();
  }
  try {
    tied_over_devices_.check_run(pass.plan.record);
    tied_over_processes_.check_run(pass.plan.record);
  } catch (...) {  // a tied parameter's gradient or change is lost; an earlier error says more
    if (!error) error = std::current_exception();
  }
  return error;
}

}  // namespace gpipe::internal
