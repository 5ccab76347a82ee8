#include "diagnose/step_model.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "balance/explain.h"
#include "balance/recomputed_cells.h"
#include "balance/shared_cores.h"
#include "gpipe/cut_sizes.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::diagnosis {
namespace {

using balance::Profile;

// What a stage's layers cost for one micro-batch.
struct StageCosts {
  double forward = 0;
  double backward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  double loss_forward = 0;
  double loss_backward = 0;
  int64_t kept = 0;
  int64_t sent = 0;  // the activation
};

std::vector<StageCosts> stage_costs(const Costs& costs, const Profile& profile,
                                    const std::vector<int64_t>& balance) {
  std::vector<StageCosts> result;
  size_t next = 0;
  for (const int64_t layers : balance) {
    StageCosts stage;
    for (const size_t end = next + static_cast<size_t>(layers); next < end; ++next) {
      const balance::LayerProfile& layer = profile.layers.at(next);
      stage.forward += layer.forward;
      stage.backward += layer.backward;
      const balance::SplitBackward halves = balance::split_backward(layer);
      stage.input_gradient += halves.input;
      stage.weight_gradient += halves.weight;
      stage.kept += layer.kept;
      stage.sent = layer.output;
    }
    result.push_back(stage);
  }
  if (profile.layers.front().split) {  // as in balance::explain()
    result.front().input_gradient = 0;
    result.front().weight_gradient = result.front().backward;
  }
  result.back().loss_forward = costs.loss_forward * static_cast<double>(profile.batch_rows);
  result.back().loss_backward = costs.loss_backward * static_cast<double>(profile.batch_rows);
  return result;
}

// As for a pipeline without direct skips: each skip goes from stage to stage, where the first layer
// takes it and hands it on.
Profile hopping(Profile profile, const std::vector<int64_t>& balance) {
  std::vector<int64_t> first;  // [stage] layer
  std::vector<size_t> stage_of;
  for (const int64_t layers : balance) {
    first.push_back(static_cast<int64_t>(stage_of.size()));
    stage_of.insert(stage_of.end(), static_cast<size_t>(layers), first.size() - 1);
  }
  std::vector<balance::SkipProfile> hops;
  for (const balance::SkipProfile& skip : profile.skips) {
    int64_t from = skip.from;
    const size_t last = stage_of.at(static_cast<size_t>(skip.to));
    for (size_t j = stage_of.at(static_cast<size_t>(from)) + 1; j < last; ++j) {
      hops.push_back({from, first[j], skip.bytes});
      from = first[j];
    }
    hops.push_back({from, skip.to, skip.bytes});
  }
  profile.skips = std::move(hops);
  return profile;
}

Profile profile_of(const Costs& costs, int64_t rows, const PipelineSetup& setup) {
  Profile profile = costs.at(rows);
  return setup.direct_skips ? profile : hopping(std::move(profile), setup.balance);
}

// The routes of a cut, and what the skips among them take.
struct Cut {
  Routes routes;
  std::vector<size_t> skips;  // [skip of the routes] the profile's
};

Cut cut_of(const Profile& profile, const std::vector<int64_t>& balance) {
  std::vector<int32_t> stage_of;
  for (size_t j = 0; j < balance.size(); ++j) {
    stage_of.insert(stage_of.end(), static_cast<size_t>(balance[j]), static_cast<int32_t>(j));
  }
  std::vector<Route> routes;
  std::vector<size_t> skips;
  for (size_t k = 0; k < profile.skips.size(); ++k) {
    const int32_t from = stage_of.at(static_cast<size_t>(profile.skips[k].from));
    const int32_t to = stage_of.at(static_cast<size_t>(profile.skips[k].to));
    if (from == to) continue;
    routes.push_back({from, to, ""});
    skips.push_back(k);
  }
  return {Routes::create(static_cast<int64_t>(balance.size()), std::move(routes)),
          std::move(skips)};
}

// [stage] how near its most graphs at a time are to those of all micro-batches: 0 for one, 1 for
// all.
std::vector<double> held_share(const Schedule& schedule,
                               const std::vector<std::vector<bool>>& checkpointed) {
  std::vector<double> result;
  for (int64_t j = 0; j < schedule.stages(); ++j) {
    int64_t held = 0, most = 0;
    for (const Action& action : schedule.actions(schedule.worker_of(j))) {
      if (action.stage != j) continue;
      if (checkpointed[static_cast<size_t>(j)][static_cast<size_t>(action.micro_batch)]) continue;
      if (action.kind == ActionKind::kForward) most = std::max(most, ++held);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient) {
        --held;
      }
    }
    const int64_t others = schedule.micro_batches() - 1;
    result.push_back(
        others > 0 && most > 1 ? static_cast<double>(most - 1) / static_cast<double>(others) : 0.0);
  }
  return result;
}

void check(const Costs& costs, const PipelineSetup& setup, const Schedule& schedule,
           int64_t micro_batches) {
  const auto layers = static_cast<int64_t>(costs.profiles.at(0).layers.size());
  int64_t sum = 0;
  for (const int64_t partition_layers : setup.balance) sum += partition_layers;
  if (sum != layers) {
    throw std::invalid_argument("the balance sums up to " + std::to_string(sum) +
                                ", but there are " + std::to_string(layers) + " layers");
  }
  const auto partitions = static_cast<int64_t>(setup.balance.size());
  if (schedule.stages() != partitions || schedule.micro_batches() != micro_batches) {
    throw std::invalid_argument("the schedule is for " + std::to_string(schedule.stages()) +
                                " stages and " + std::to_string(schedule.micro_batches()) +
                                " micro-batches, expected " + std::to_string(partitions) + " and " +
                                std::to_string(micro_batches));
  }
}

}  // namespace

ModeledStep model_step(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                       const Machine& machine, const Effects& effects) {
  const CutSizes sizes = cut_sizes(rows, setup.chunks);
  const int64_t micro_batches = sizes.micro_batches;
  const int64_t last_rows = rows - sizes.rows * (micro_batches - 1);
  const Schedule schedule =
      setup.schedule.make(static_cast<int64_t>(setup.balance.size()), micro_batches);
  check(costs, setup, schedule, micro_batches);

  const Profile profile = profile_of(costs, sizes.rows, setup);
  const Profile last_profile = profile_of(costs, last_rows, setup);
  const std::vector<StageCosts> usual = stage_costs(costs, profile, setup.balance);
  const std::vector<StageCosts> last = stage_costs(costs, last_profile, setup.balance);
  const auto is_last = [&](const Action& action) {
    return action.micro_batch + 1 == micro_batches;
  };
  const auto costs_of = [&](const Action& action) -> const StageCosts& {
    return (is_last(action) ? last : usual)[static_cast<size_t>(action.stage)];
  };
  const auto again = balance::recomputed_cells(schedule, setup.checkpoints);
  const std::vector<double> held = held_share(schedule, again);

  SimulateOptions options;
  options.action = [&](const Action& action) {
    const auto j = static_cast<size_t>(action.stage);
    const StageCosts& stage = costs_of(action);
    const bool checkpointed = again[j][static_cast<size_t>(action.micro_batch)];
    const double recompute = checkpointed && effects.recompute ? stage.forward : 0.0;
    const double fresh = checkpointed || !effects.machine
                             ? 0.0
                             : held[j] * costs.fresh_memory * static_cast<double>(stage.kept);
    switch (action.kind) {
      case ActionKind::kForward:
        return stage.forward + stage.loss_forward + fresh;
      case ActionKind::kBackward:
        return recompute + stage.backward + stage.loss_backward;
      case ActionKind::kInputGradient:
        return recompute + stage.input_gradient + stage.loss_backward;
      case ActionKind::kWeightGradient:
        return stage.weight_gradient;
    }
    return 0.0;
  };
  const Cut cut = cut_of(profile, setup.balance);
  if (effects.transfers && (machine.bandwidth > 0 || machine.latency > 0)) {
    options.transfer = [&](const Transfer& transfer) {
      const std::optional<size_t> skip = cut.routes.skip(transfer.route);
      const Profile& producer_profile = is_last(transfer.producer) ? last_profile : profile;
      const auto source = static_cast<size_t>(cut.routes[transfer.route].source_stage);
      const int64_t bytes = skip ? producer_profile.skips[cut.skips[*skip]].bytes
                                 : (is_last(transfer.producer) ? last : usual)[source].sent;
      return machine.latency +
             (machine.bandwidth > 0 ? static_cast<double>(bytes) / machine.bandwidth : 0.0);
    };
  }
  const balance::SharedRun run = balance::share_cores(simulate(schedule, cut.routes, options),
                                                      effects.machine ? machine.cores : 0,
                                                      effects.machine ? machine.contention : 1.0);

  ModeledStep result;
  result.step = run.makespan;
  for (const double busy : run.busy) result.busy += busy;
  std::vector<double> workers(static_cast<size_t>(schedule.workers()));
  int64_t next = 0;
  for (size_t j = 0; j < setup.balance.size(); ++j) {
    ModeledPartition partition;
    partition.layers = {next, next + setup.balance[j] - 1};
    next += setup.balance[j];
    for (int64_t m = 0; m < micro_batches; ++m) {
      const StageCosts& stage = (m + 1 == micro_batches ? last : usual)[j];
      partition.work += stage.forward + stage.backward + stage.loss_forward + stage.loss_backward;
      if (again[j][static_cast<size_t>(m)]) partition.recompute += stage.forward;
    }
    workers[static_cast<size_t>(schedule.worker_of(static_cast<int64_t>(j)))] += partition.work;
    result.work += partition.work;
    result.partitions.push_back(partition);
  }
  result.busiest = *std::max_element(workers.begin(), workers.end());
  return result;
}

std::vector<int64_t> model_memory(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                                  double param_scale) {
  const CutSizes sizes = cut_sizes(rows, setup.chunks);
  const Profile profile = profile_of(costs, sizes.rows, setup);
  balance::ExplainOptions options;
  options.chunks = sizes.micro_batches;
  options.schedule = setup.schedule.make;
  options.param_scale = param_scale;
  std::vector<int64_t> result(setup.balance.size());
  // A partition's memory does not depend on how the others are checkpointed.
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    if (std::find(setup.checkpoints.begin(), setup.checkpoints.end(), mode) ==
        setup.checkpoints.end()) {
      continue;
    }
    options.checkpoint = mode;
    const balance::Explanation explanation = balance::explain(profile, setup.balance, options);
    for (size_t j = 0; j < result.size(); ++j) {
      if (setup.checkpoints.at(j) == mode) result[j] = explanation.partitions[j].memory;
    }
  }
  return result;
}

}  // namespace gpipe::diagnosis
