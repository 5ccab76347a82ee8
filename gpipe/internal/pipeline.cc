#include "gpipe/internal/pipeline.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include "gpipe/internal/cpu_threads.h"
#include "gpipe/internal/failure.h"
#include "gpipe/internal/transfer.h"
#include "gpipe/runtime/exit_gate.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

// Where the routes of the whole pipeline meet in a stage.
StageRoutes routes_of(int64_t stage, const Routes& routes, const std::vector<skip::SkipEdge>& skips,
                      int64_t stages) {
  StageRoutes result;
  auto skip_of = [&](int32_t id) -> const skip::SkipEdge& { return skips[id - (stages - 1)]; };
  for (int32_t id : routes.incoming(stage)) {
    if (id >= stages - 1) result.incoming.push_back(skip_of(id).key);
  }
  // The plain model adds up the gradients of a tensor used several times from its last use to its
  // first. A skip is used behind the activation, the one that is popped latest first of all.
  std::vector<std::pair<int32_t, int>> order;
  for (int32_t id : routes.outgoing(stage)) {
    if (id < stages - 1) continue;
    result.outgoing.push_back(skip_of(id).key);
    result.outgoing_targets.push_back(skip_of(id).target_partition);
    order.emplace_back(skip_of(id).target_layer, static_cast<int>(result.outgoing.size()));
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& entry : order) result.gradient_order.push_back(entry.second);
  result.gradient_order.push_back(0);
  return result;
}

// [stage][micro-batch] whether the cell's backward is its worker's next action after its forward.
std::vector<std::vector<bool>> backwards_that_follow_at_once(const Schedule& schedule) {
  std::vector<std::vector<bool>> result(schedule.stages(),
                                        std::vector<bool>(schedule.micro_batches()));
  for (const std::vector<Action>& actions : schedule.table()) {
    for (size_t k = 0; k + 1 < actions.size(); ++k) {
      const Action& action = actions[k];
      if (action.kind == ActionKind::kForward && actions[k + 1].stage == action.stage &&
          actions[k + 1].micro_batch == action.micro_batch) {
        result[action.stage][action.micro_batch] = true;
      }
    }
  }
  return result;
}

}  // namespace

// The key is switched on where a pipeline's cells run, and autograd takes it along to the threads
// on which it runs their graphs.
bool inside_pipeline() { return c10::impl::tls_is_dispatch_key_included(kInterceptionKey); }

std::string FailurePlace::to_text() const {
  const std::string what = action.kind == ActionKind::kForward          ? "forward"
                           : action.kind == ActionKind::kWeightGradient ? "backward (of weights)"
                                                                        : "backward";
  return "in the " + what + " of stage " + std::to_string(action.stage) + ", micro-batch " +
         std::to_string(action.micro_batch) + ", " + layer;
}

Pipeline::Pipeline(std::vector<std::vector<Layer>> partitions, std::vector<c10::Device> devices,
                   const skip::Layout& layout, int64_t cpu_threads_per_stage)
    : routes_([&] {
        std::vector<Route> skips;
        for (const skip::SkipEdge& edge : layout.crossing()) {
          skips.push_back({edge.source_partition, edge.target_partition, edge.key.to_text()});
        }
        return Routes::create(static_cast<int64_t>(partitions.size()), std::move(skips));
      }()) {
  const int64_t stages = static_cast<int64_t>(partitions.size());
  stages_.reserve(stages);
  for (int64_t j = 0; j < stages; ++j) {
    stages_.emplace_back(j, devices[j], std::move(partitions[j]),
                         routes_of(j, routes_, layout.crossing(), stages));
    first_on_device_.push_back(std::find(devices.begin(), devices.end(), devices[j]) -
                               devices.begin());
  }
  const int64_t cpu_stages =
      std::count_if(devices.begin(), devices.end(), [](c10::Device d) { return d.is_cpu(); });
  const int64_t threads = share_of_cpu_threads(cpu_threads_per_stage, cpu_stages);
  // A single stage has nothing to overlap with: it runs on the caller's thread, unless that one has
  // another number of intra-op threads than asked for.
  const bool inline_single = cpu_threads_per_stage == 0;
  const DefaultThreadsScope of_the_caller;
  pool_ = std::make_unique<WorkerPool>(
      stages,
      [&](int64_t) {
        if (cpu_stages > 0) set_threads_of_this_thread(threads);
      },
      inline_single);
  shut_at_exit();
}

void Pipeline::check_callable() {
  run_lock_.check_process();
  late_checks_.look();
  for (const Stage& stage : stages_) {
    for (const Layer& layer : stage.layers()) {
      if (layer.skips.empty()) continue;
      const std::optional<std::string> moved = layer.skips.moved_skip();
      TORCH_CHECK_VALUE(!moved, "isolate() was called on layer ", layer.index, " ('", layer.name,
                        "') after the pipeline was made, which reads the namespaces only then: ",
                        *moved, "; call isolate() before, or make a new pipeline");
    }
  }
}

std::optional<FailurePlace> Pipeline::last_failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return last_failure_;
}

const Pipeline::Compiled& Pipeline::program_for(const Schedule& schedule, Half half) {
  for (const auto& compiled : programs_) {
    if (compiled->half == half && compiled->schedule == schedule) return *compiled;
  }
  TORCH_CHECK_VALUE(schedule.stages() == stages(), "the schedule is for ", schedule.stages(),
                    " stages, but the pipeline has ", stages());
  TORCH_CHECK_VALUE(schedule.workers() <= stages(), "the schedule is for ", schedule.workers(),
                    " workers, but the ", stages(), " stages can keep only as many busy");
  try {
    // Slots hold what was sent until it is taken: nobody waits for a receiver.
    schedule.verify(routes_, Sends::kBuffered);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "the schedule cannot be run: ", error.what());
  }
  bool forwards = false, backwards = false;
  for (const std::vector<Action>& actions : schedule.table()) {
    for (const Action& action : actions) {
      (action.kind == ActionKind::kForward ? forwards : backwards) = true;
    }
  }
  // Half a schedule verifies, too.
  TORCH_CHECK_VALUE(forwards && backwards, "the schedule has no ",
                    forwards ? "backwards" : "forwards",
                    "; a step needs both, so give the whole schedule and not a half of it");
  // The tail of an epoch brings another number of micro-batches; a few programs are enough to keep.
  constexpr size_t kKept = 16;
  if (programs_.size() >= kKept) programs_.erase(programs_.begin());
  auto compiled = std::make_unique<Compiled>(
      Compiled{schedule, half, Program(), backwards_that_follow_at_once(schedule)});
  compiled->program = compile(half == Half::kForward    ? schedule.only({ActionKind::kForward})
                              : half == Half::kBackward ? schedule.only({ActionKind::kBackward})
                                                        : schedule,
                              routes_);
  programs_.push_back(std::move(compiled));
  return *programs_.back();
}

ModelState Pipeline::model_state() const {
  std::vector<const std::vector<Layer>*> partitions;
  for (const Stage& stage : stages_) partitions.push_back(&stage.layers());
  return ModelState(partitions);
}

void Pipeline::run_forward(Pass& pass) {
  const RunLock::Scope scope(run_lock_);
  if (pass.plan.record) pass.plan.model = model_state();
  run(pass, program_for(Schedule::gpipe(stages(), pass.micro_batches()), Half::kForward), nullptr);
  pass.inputs.finish_forward();
  // A layer may have registered something in its first forward.
  if (pass.plan.record) pass.plan.model = model_state();
  StatisticsLog::commit(pass.statistics);
}

void Pipeline::run_backward(Pass& pass) {
  check_callable();
  check_backward_thread();
  const RunLock::Scope scope(run_lock_);
  check_unchanged(pass);
  run(pass, program_for(Schedule::gpipe(stages(), pass.micro_batches()), Half::kBackward), nullptr);
  pass.output_gradient_of = nullptr;
}

void Pipeline::check_unchanged(Pass& pass) {
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

void Pipeline::run_step(Pass& pass, const Schedule& schedule, const Observer& observer) {
  check_backward_thread();
  const RunLock::Scope scope(run_lock_);
  TORCH_CHECK_VALUE(schedule.micro_batches() == pass.micro_batches(), "the schedule is for ",
                    schedule.micro_batches(), " micro-batches, but this mini-batch gives ",
                    pass.micro_batches(),
                    "; give a ScheduleGenerator (Schedule::one_f_one_b, say) instead of a fixed "
                    "Schedule where batches vary");
  pass.plan.model = model_state();
  run(pass, program_for(schedule, Half::kBoth), observer);
  pass.inputs.finish_forward();
  StatisticsLog::commit(pass.statistics);
}

void Pipeline::run(Pass& pass, const Compiled& compiled, const Observer& observer) {
  const Program& program = compiled.program;
  pass.plan.follows_at_once = &compiled.follows_at_once;
  pass.plan.forward_state = &pass.forward_state;
  TrackedStatistics tracked(stages());
  for (Stage& stage : stages_) {
    for (const Layer& layer : stage.layers()) tracked.add(stage.index(), *layer.module.ptr());
  }
  pass.plan.tracked = &tracked;
  pass.foreign.clear();
  for (Stage& stage : stages_) stage.begin_call();
  const CallerState caller_state;
  const std::vector<c10::Stream> of_caller = streams_of_caller();
  if (pass.streams.empty()) pass.streams = of_caller;
  for (size_t k = 0; k < of_caller.size(); ++k) follow(pass.streams[k], of_caller[k]);
  const bool on_caller = pool_->is_inline();
  // Several stages may fail in one run; the caller is told of the one whose exception it gets.
  std::vector<std::pair<std::exception_ptr, FailurePlace>> failures;  // guarded by failure_mutex_
  try {
    execute<Packet>(
        *pool_, program,
        [&](const Action& action, std::vector<Packet>& received, std::vector<Packet>& sent) {
          try {
            handle(pass, action, received, sent);
          } catch (...) {
            const FailurePlace place{action, stages_[action.stage].current_layer()};
            try {
              rethrow_with(std::current_exception(), place.to_text());
            } catch (...) {
              std::lock_guard<std::mutex> lock(failure_mutex_);
              failures.emplace_back(std::current_exception(), place);
              throw;
            }
          }
        },
        observer,
        [&](int64_t worker, const std::function<void()>& steps) {
          std::optional<CallerStateScope> state;
          if (!on_caller) state.emplace(caller_state);
          AutocastCacheOff no_cache;
          InterceptionScope mode;
          const int32_t stage = program.workers[worker].front().action.stage;
          StreamScope streams(pass.streams, stages_[stage].device());
          steps();
        });
    give_back(pass, of_caller);
  } catch (...) {
    const std::exception_ptr caught = std::current_exception();
    {
      std::lock_guard<std::mutex> lock(failure_mutex_);
      for (const auto& [error, place] : failures) {
        if (error != caught) continue;
        last_failure_ = place;
        break;  // several stages may have thrown one object, which a user keeps and rethrows
      }
    }
    // What the outputs' graph keeps of a failed mini-batch is nothing; a forward's or a step's pass
    // ends here anyway.
    for (auto& row : pass.cells) {
      for (Cell& cell : row) cell = Cell();
    }
    pass.inputs.finish_forward();
    pass.inputs = CallerInputs();
    pass.output_gradient_of = nullptr;
    pass.input_gradients.clear();
    pass.leaf_sums.clear();
    pass.used = Pass::Used::kByFailure;
    try {
      give_back(pass, of_caller);
    } catch (...) {  // the device's own error, if it is broken; the first one tells more
    }
    throw;
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
      "thread, and would wait for it for ever. Call it outside, or from another thread that "
      "nobody waits for there");
}

void Pipeline::give_back(const Pass& pass, const std::vector<c10::Stream>& of_caller) {
  for (size_t k = 0; k < of_caller.size(); ++k) {
    transfers_.let_follow(pass.streams[k]);
    follow(of_caller[k], pass.streams[k]);
  }
  // Made on the stages' streams, read on the caller's.
  auto use_here = [](const at::Tensor& gradient) {
    if (gradient.defined()) use_on(gradient, current_stream(gradient.device()));
  };
  for (const Packet& packet : pass.input_gradients) {
    for (const Item& item : packet.items) use_here(item.tensor);
  }
  if (!pass.captured) return;
  for (const at::Tensor& sum : pass.captured->sums) use_here(sum);
}

void Pipeline::handle(Pass& pass, const Action& action, std::vector<Packet>& received,
                      std::vector<Packet>& sent) {
  const int64_t j = action.stage;
  const int64_t i = action.micro_batch;
  Stage& stage = stages_[j];
  Cell& cell = pass.cells[j][i];
  const bool first = j == 0;
  const bool last = j + 1 == stages();
  // A worker may run stages of several devices.
  c10::OptionalDeviceGuard device;
  if (!stage.device().is_cpu()) device.reset_device(stage.device());
  auto send_all = [&](std::vector<Packet>& packets, size_t from, const std::vector<int32_t>& ids,
                      bool forward) {
    c10::SmallVector<c10::Device, 4> targets;
    for (size_t k = 0; k < sent.size(); ++k) {
      const Route& route = routes_[ids[k]];
      sent[k] = std::move(packets[from + k]);
      targets.push_back(stages_[forward ? route.target_stage : route.source_stage].device());
    }
    transfers_.depart_together(sent, targets);
  };
  if (action.kind == ActionKind::kForward) {
    std::vector<Packet> inputs;
    if (first) inputs.push_back(pass.inputs.micro_batch(i));
    for (Packet& packet : received) inputs.push_back(std::move(packet));
    std::vector<Packet> outputs = stage.forward(pass.plan, i, std::move(inputs), cell,
                                                last ? pass.loss : nullptr, &pass.statistics[j]);
    if (last) {
      if (pass.keep_outputs) pass.outputs[i] = std::move(outputs[0]);
    } else {
      send_all(outputs, 0, routes_.outgoing(j), /*forward=*/true);
    }
  } else {
    std::vector<Packet> gradients;
    if (last && pass.output_gradient_of) gradients.push_back(pass.output_gradient_of(i));
    for (Packet& packet : received) gradients.push_back(std::move(packet));
    BackwardTask task;
    task.part = action.kind == ActionKind::kInputGradient    ? BackwardPart::kInputs
                : action.kind == ActionKind::kWeightGradient ? BackwardPart::kWeights
                                                             : BackwardPart::kWhole;
    task.keep = pass.keep_graph;
    task.captured = pass.captured ? &*pass.captured : nullptr;
    task.foreign = &pass.foreign;
    task.late_checks = &late_checks_;
    task.transfers = &transfers_;
    task.on_caller = pool_->is_inline();
    task.leaf_sums = &pass.leaf_sums[i];
    task.first_on_device = &first_on_device_;
    task.target_gradients = &pass.target_gradients[i];
    std::vector<Packet> results = stage.backward(pass.plan, i, std::move(gradients), cell, task);
    if (task.part == BackwardPart::kWeights) return;
    if (first) {
      pass.input_gradients[i] = results.empty() ? Packet() : std::move(results[0]);
    } else {
      results.resize(std::max(results.size(), sent.size()));
      send_all(results, 0, routes_.incoming(j), /*forward=*/false);
    }
  }
}

}  // namespace gpipe::internal
