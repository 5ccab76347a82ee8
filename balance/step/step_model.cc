#include "balance/step/step_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "balance/step/cell_costs.h"

namespace gpipe::balance {
namespace {

// [stage] The share of all micro-batches' graphs that the stage holds at its peak: 0 for one graph,
// 1 for all.
std::vector<double> held_shares(const StepModel& model) {
  const Schedule& schedule = model.schedule;
  std::vector<int64_t> held(static_cast<size_t>(schedule.stages()));
  std::vector<int64_t> most(held.size());
  for (const std::vector<Action>& actions : schedule.table()) {
    for (const Action& action : actions) {
      const auto j = static_cast<size_t>(action.stage);
      if (model.recomputed[j][static_cast<size_t>(action.micro_batch)]) continue;
      const CellMemory memory = cell_memory(action.kind, /*recomputed=*/false);
      const auto has_graph = [](const HeldParts& parts) { return parts.kept || parts.waiting; };
      held[j] += static_cast<int64_t>(has_graph(memory.after)) -
                 static_cast<int64_t>(has_graph(memory.before));
      most[j] = std::max(most[j], held[j]);
    }
  }
  const int64_t others = schedule.micro_batches() - 1;
  std::vector<double> shares;
  for (const int64_t count : most) {
    shares.push_back(others > 0 && count > 1
                         ? static_cast<double>(count - 1) / static_cast<double>(others)
                         : 0.0);
  }
  return shares;
}

// The first backward of the last stage.
const Action* first_backward(const Schedule& schedule) {
  const int64_t last = schedule.stages() - 1;
  for (const Action& action : schedule.actions(schedule.worker_of(last))) {
    if (action.stage == last && begins_backward(action.kind)) return &action;
  }
  return nullptr;
}

// The seconds of each action of a model.
class ActionSeconds {
 public:
  explicit ActionSeconds(const StepModel& model) : model_(model) {
    if (model.fresh_memory > 0) held_shares_ = held_shares(model);
  }

  double operator()(const Action& action) const {
    const StageCosts& stage = model_.stage(action);
    const double layers = layer_seconds(stage, action.kind);
    const double recompute = model_.forwards_again(action) * stage.recompute;
    const double beside = model_.machine.overhead + copies(action) + fresh_memory(action, stage);
    return model_.size(action) * (recompute + layers) + loss_seconds(stage, action.kind) + beside;
  }

 private:
  // Seconds of the copies that arrive and leave.
  double copies(const Action& action) const {
    if (model_.copy_streams || !is_on_the_way(action.kind)) return 0.0;
    const Routes& routes = model_.costs.front().routes;
    double seconds = 0.0;
    for (const RouteId route : routes.incoming(action.stage))
      seconds += copy(routes, route, action);
    for (const RouteId route : routes.outgoing(action.stage))
      seconds += copy(routes, route, action);
    return seconds;
  }
  double copy(const Routes& routes, RouteId route, const Action& action) const {
    const int64_t from = model_.schedule.worker_of(routes[route].source_stage);
    const int64_t to = model_.schedule.worker_of(routes[route].target_stage);
    return from == to ? 0.0 : model_.copy_seconds(route, action);
  }

  // Seconds for memory that an action's graph touches for the first time.
  double fresh_memory(const Action& action, const StageCosts& stage) const {
    if (held_shares_.empty()) return 0.0;
    const CellMemory memory = cell_memory(action.kind, model_.is_recomputed(action));
    if (memory.before.kept || !memory.after.kept) return 0.0;
    return held_shares_[static_cast<size_t>(action.stage)] * model_.fresh_memory *
           (model_.size(action) * static_cast<double>(stage.kept));
  }

  const StepModel& model_;
  std::vector<double> held_shares_;  // [stage]; empty: not needed
};

// The last part of the cell before the move with this index.
const Action& part_before(const std::vector<Action>& actions, size_t move) {
  const Action& moved = actions[move];
  for (size_t k = move; k-- > 0;) {
    const Action& action = actions[k];
    if (computes(action.kind) && action.stage == moved.stage &&
        action.micro_batch == moved.micro_batch) {
      return action;
    }
  }
  throw std::invalid_argument(moved.to_text() + " moves what no action before it has made");
}

// The memory held by all stages of the worker, or by one of them.
StepMemory memory_of(const StepModel& model, int64_t worker, std::optional<int64_t> stage,
                     double param_scale) {
  StepMemory result;
  result.param_scale = param_scale;
  double held = 0;
  std::vector<bool> seen(static_cast<size_t>(model.schedule.stages()));
  const std::vector<Action>& actions = model.schedule.actions(worker);
  for (size_t k = 0; k < actions.size(); ++k) {
    const Action& action = actions[k];
    if (stage && action.stage != *stage) continue;
    if (!computes(action.kind)) {
      const double bytes = model.offloaded(part_before(actions, k));
      held += action.kind == ActionKind::kOffload ? -bytes : bytes;
      result.held = std::max(result.held, held);
      continue;
    }
    const StageCosts& costs = model.stage(action);
    const auto j = static_cast<size_t>(action.stage);
    if (!seen[j]) {
      seen[j] = true;
      result.parameters += static_cast<double>(costs.parameters) * param_scale;
      result.buffers += costs.buffers;
    }
    const double size = model.size(action);
    const CellMemory memory = cell_memory(action.kind, model.is_recomputed(action));
    const double before = memory.before.bytes(costs);
    result.workspace = std::max(result.workspace, size * static_cast<double>(costs.workspace));
    result.held = std::max(result.held, held + size * (memory.during.bytes(costs) - before));
    held += size * (memory.after.bytes(costs) - before);
    result.held = std::max(result.held, held);
  }
  return result;
}

}  // namespace

int64_t StepMemory::bytes(const std::string& holder) const {
  const double all = parameters + static_cast<double>(buffers) + held + workspace;
  if (!(all < 0x1p62)) {
    std::ostringstream text;
    text << holder << " takes " << all
         << " bytes, more than a number holds; give a smaller param_scale, got " << param_scale
         << ", or a profile of fewer bytes";
    throw std::invalid_argument(text.str());
  }
  return std::llround(parameters) + buffers + std::llround(held + workspace);
}

const StageCosts& StepModel::stage(const Action& action) const {
  const MicroBatch& micro_batch = micro_batches[static_cast<size_t>(action.micro_batch)];
  return costs[micro_batch.costs].stages[static_cast<size_t>(action.stage)];
}

double StepModel::size(const Action& action) const {
  return micro_batches[static_cast<size_t>(action.micro_batch)].size;
}

bool StepModel::is_recomputed(const Action& action) const {
  return recomputed[static_cast<size_t>(action.stage)][static_cast<size_t>(action.micro_batch)];
}

double StepModel::forwards_again(const Action& action) const {
  if (!begins_backward(action.kind)) return 0.0;
  if (!early_recomputes || action.stage + 1 != schedule.stages()) {
    return is_recomputed(action) ? 1.0 : 0.0;
  }
  const Action* first = first_backward(schedule);
  if (first == nullptr || action != *first) return 0.0;
  double sizes = 0.0;
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    if (recomputed.back()[m]) sizes += micro_batches[m].size / size(action);
  }
  return sizes;
}

double StepModel::recompute_seconds(const Action& action) const {
  return size(action) * (forwards_again(action) * stage(action).recompute);
}

double StepModel::copy_seconds(RouteId route, const Action& action) const {
  const MicroBatch& micro_batch = micro_batches[static_cast<size_t>(action.micro_batch)];
  const int64_t bytes = costs[micro_batch.costs].bytes[static_cast<size_t>(route)];
  return machine.seconds(micro_batch.size * static_cast<double>(bytes));
}

double StepModel::offloaded(const Action& after) const {
  return size(after) * offloaded_bytes(stage(after), after.kind, is_recomputed(after));
}

SimulateOptions StepModel::simulate_options() const {
  SimulateOptions options;
  options.action = ActionSeconds(*this);
  if (copy_streams && (machine.bandwidth > 0 || machine.latency > 0)) {
    options.transfer = [this](const Transfer& transfer) {
      return copy_seconds(transfer.route, transfer.producer);
    };
  }
  if (machine.host_bandwidth > 0) {
    options.offload.bytes = [this](const Action& after) { return offloaded(after); };
    options.offload.to_host = options.offload.to_device = machine.host_bandwidth;
  }
  return options;
}

Simulation StepModel::simulate() const {
  return gpipe::simulate(schedule, costs.front().routes, simulate_options());
}

SharedRun StepModel::run() const {
  return share_cores(simulate(), machine.cores, machine.contention);
}

StepMemory StepModel::worker_memory(int64_t worker, double param_scale) const {
  return memory_of(*this, worker, std::nullopt, param_scale);
}

StepMemory StepModel::stage_memory(int64_t stage, double param_scale) const {
  return memory_of(*this, schedule.worker_of(stage), stage, param_scale);
}

}  // namespace gpipe::balance
