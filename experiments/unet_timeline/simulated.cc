#include "experiments/unet_timeline/simulated.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "balance/cut_costs.h"
#include "balance/recomputed_cells.h"
#include "balance/step_model.h"
#include "gpipe/schedule/action.h"

namespace gpipe::experiments {
<<<<<<< HEAD
=======
namespace {

// What the actions and the transfers of a step take, in seconds.
class Costs {
 public:
  Costs(const AblationVariant& variant, const balance::Profile& profile,
        const AblationSettings& settings)
      : variant_(variant),
        machine_(settings.machine),
        schedule_(settings.setup.schedule.make(static_cast<int64_t>(settings.setup.balance.size()),
                                               settings.setup.chunks)),
        checkpointed_(balance::recomputed_cells(schedule_, settings.setup.checkpoints)) {
    add_stages(profile, settings.setup.balance);
    add_routes(profile);
  }

  const Schedule& schedule() const { return schedule_; }
  const Routes& routes() const { return *routes_; }

  double recompute(const Action& action) const {
    if (action.kind != ActionKind::kBackward && action.kind != ActionKind::kInputGradient) return 0;
    const auto stage = static_cast<std::size_t>(action.stage);
    const std::vector<bool>& of_stage = checkpointed_[stage];
    double cells = of_stage[static_cast<std::size_t>(action.micro_batch)] ? 1 : 0;
    if (variant_.early_recomputes && stage + 1 == checkpointed_.size()) {
      cells = 0;
      if (action == first_backward()) {
        for (const bool checkpointed : of_stage) cells += checkpointed ? 1 : 0;
      }
    }
    return cells * forward_[stage];
  }

  double action(const Action& action) const {
    const auto stage = static_cast<std::size_t>(action.stage);
    const double beside = machine_.overhead + (variant_.copy_streams ? 0 : copies_around(action));
    switch (action.kind) {
      case ActionKind::kForward:
        return forward_[stage] + beside;
      case ActionKind::kBackward:
        return recompute(action) + backward_[stage] + beside;
      case ActionKind::kInputGradient:
        return recompute(action) + backward_[stage] / 2 + beside;
      case ActionKind::kWeightGradient:
        return backward_[stage] / 2 + machine_.overhead;
    }
    return 0;
  }

  double transfer(RouteId route) const { return variant_.copy_streams ? copy(route) : 0; }

 private:
  void add_stages(const balance::Profile& profile, const std::vector<int64_t>& balance) {
    const int64_t sum = std::accumulate(balance.begin(), balance.end(), int64_t{0});
    if (sum != static_cast<int64_t>(profile.layers.size())) {
      throw std::invalid_argument("the balance sums up to " + std::to_string(sum) +
                                  ", but the profile has " + std::to_string(profile.layers.size()) +
                                  " layers");
    }
    std::size_t layer = 0;
    for (const int64_t count : balance) {
      double forward = 0;
      double backward = 0;
      for (int64_t k = 0; k < count; ++k, ++layer) {
        forward += profile.layers[layer].forward;
        backward += profile.layers[layer].backward;
        stage_of_.push_back(static_cast<int32_t>(forward_.size()));
      }
      forward_.push_back(forward);
      backward_.push_back(backward);
      outputs_.push_back(static_cast<double>(profile.layers[layer - 1].output));
    }
  }

  void add_routes(const balance::Profile& profile) {
    bytes_.assign(outputs_.begin(), outputs_.end() - 1);
    std::vector<Route> skips;
    const auto add = [&](int32_t from, int32_t to, int64_t bytes) {
      skips.push_back({from, to, "skip"});
      bytes_.push_back(static_cast<double>(bytes));
    };
    for (const balance::SkipProfile& skip : profile.skips) {
      const int32_t from = stage_of_[static_cast<std::size_t>(skip.from)];
      const int32_t to = stage_of_[static_cast<std::size_t>(skip.to)];
      if (from == to) continue;
      if (variant_.direct_skips) {
        add(from, to, skip.bytes);
      } else {
        for (int32_t stage = from; stage < to; ++stage) add(stage, stage + 1, skip.bytes);
      }
    }
    routes_ = Routes::create(static_cast<int64_t>(forward_.size()), std::move(skips));
  }

  Action first_backward() const {
    const int32_t last = static_cast<int32_t>(forward_.size()) - 1;
    for (const Action& action : schedule_.actions(schedule_.worker_of(last))) {
      if (action.stage == last && action.kind != ActionKind::kForward) return action;
    }
    return {};
  }

  // What comes and what goes.
  double copies_around(const Action& action) const {
    double seconds = 0;
    for (const RouteId route : routes_->incoming(action.stage)) seconds += copy(route);
    for (const RouteId route : routes_->outgoing(action.stage)) seconds += copy(route);
    return seconds;
  }

  double copy(RouteId route) const {
    const double bytes = bytes_[static_cast<std::size_t>(route)];
    return machine_.latency + (machine_.bandwidth > 0 ? bytes / machine_.bandwidth : 0);
  }

  const AblationVariant& variant_;
  const SimulatedMachine machine_;
  const Schedule schedule_;
  std::vector<std::vector<bool>> checkpointed_;  // [stage][micro-batch]
  std::vector<int32_t> stage_of_;                // [layer]
  std::vector<double> forward_;                  // [stage]
  std::vector<double> backward_;                 // as well
  std::vector<double> outputs_;                  // as well, in bytes
  std::vector<double> bytes_;                    // [route]
  std::optional<Routes> routes_;
};

}  // namespace
>>>>>>> setup

SimulatedStep simulate_ablation(const AblationVariant& variant, const balance::Profile& profile,
                                const AblationSettings& settings) {
  balance::CutCosts costs = balance::cut_costs(profile, settings.balance, variant.direct_skips);
  const Schedule schedule =
      settings.schedule(static_cast<int64_t>(settings.balance.size()), settings.chunks);
  balance::StepModel model{
      schedule, balance::recomputed_cells(schedule, settings.checkpoint), {std::move(costs)}};
  model.micro_batches.resize(static_cast<std::size_t>(settings.chunks));
  model.machine.bandwidth = settings.machine.bandwidth;
  model.machine.latency = settings.machine.latency;
  model.machine.overhead = settings.machine.overhead;
  model.copy_streams = variant.copy_streams;
  model.early_recomputes = variant.early_recomputes;
  return {to_timeline(model.simulate(), 1.0,
                      [&](const Action& action) { return model.recompute_seconds(action); }),
          model.costs.front().routes};
}

}  // namespace gpipe::experiments
