#include "experiments/common/simulated_rows.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/common/balance.h"
#include "experiments/common/layer_costs.h"

namespace gpipe::experiments {
struct SimulatedRows::State {
  SpeedExperiment experiment;
  SimulatedMachine machine;
  balance::NominalDevice nominal;
  SpeedNetwork network;
  LayerCosts costs;
  std::string device;            // of the profile; empty: none was measured
  int64_t profiled_rows = 0;     // its micro-batch
  std::optional<double> factor;  // of the counted costs; none yet

  // The costs are counted when the first row is run, not when the command line is read.
  void calibrate() {
    if (factor) return;
    if (device.empty()) {
      factor = factor_for(find_variant(experiment.variants, experiment.reference),
                          experiment.samples, experiment.reference_throughput, costs, machine);
      costs = scaled(std::move(costs), *factor);
    } else {
      factor = 1;
    }
  }

  std::string describe(const SpeedVariant& variant) const {
    std::string text = absl::StrFormat("%s, %d x %s", network.title, variant.batch_size,
                                       absl::StrJoin(network.model.row, " x "));
    if (!variant.balance.empty()) {
      text += absl::StrFormat(", chunks %d, balance %s, checkpoint %s, gpipe", variant.chunks,
                              to_text(variant.balance), gpipe::to_text(variant.checkpoint));
    }
    if (device.empty()) {
      text += absl::StrFormat("; times from FLOPs and bytes, x %.3f", *factor);
      if (variant.name == experiment.reference) {
        text += ", which gives this row the throughput " + experiment.reference_source;
      }
    } else {
      text += absl::StrFormat("; times of %s with a micro-batch of %d", device, profiled_rows);
    }
    return text + (experiment.assumed.empty() ? "" : "; " + experiment.assumed);
  }

  Json settings_of(const SpeedVariant& variant, const SimulatedSpeed& speed) const {
    Json json = {{"network", network.title},
                 {"scale", to_text(Scale::kFull)},
                 {"batch_size", variant.batch_size},
                 {"samples", experiment.samples},
                 {"costs", device.empty() ? Json("nominal") : Json(device)},
                 {"factor", *factor}};
    if (!variant.balance.empty()) {
      json["chunks"] = variant.chunks;
      json["balance"] = variant.balance;
      json["checkpoint"] = gpipe::to_text(variant.checkpoint);
      json["schedule"] = "gpipe";
      json["link_bandwidth"] = machine.bandwidth;
      json["link_latency"] = machine.latency;
      json["action_overhead"] = machine.overhead;
    }
    json["steps"] = Json::array();
    const std::vector<EpochSteps> steps = steps_of_epoch(variant, experiment.samples);
    for (size_t i = 0; i < steps.size(); ++i) {
      json["steps"].push_back({{"times", steps[i].times},
                               {"micro_batches", steps[i].micro_batches.size()},
                               {"rows", steps[i].micro_batches.front()},
                               {"last_rows", steps[i].micro_batches.back()},
                               {"checkpoint", gpipe::to_text(steps[i].checkpoint)},
                               {"seconds", speed.steps[i].step},
                               {"bubble", speed.steps[i].bubble}});
    }
    return json;
  }

  void run(const SpeedVariant& variant, Outcome& outcome, const RunContext& context) {
    calibrate();
    outcome.note = describe(variant);
    if (context.out != nullptr) {
      *context.out << "\n" << variant.name << " (simulated): " << outcome.note << std::endl;
    }
    const SimulatedSpeed speed = simulate_speed(variant, experiment.samples, costs, machine);
    outcome.settings = settings_of(variant, speed);
    outcome.figures["throughput"] = speed.throughput;
    outcome.origin = Origin::kSimulated;
    if (context.out != nullptr) {
      *context.out << absl::StrFormat("%.3f samples/sec, %.3f sec/epoch\n", speed.throughput,
                                      speed.seconds)
                   << std::flush;
    }
  }
};

SimulatedRows::SimulatedRows(const SpeedExperiment& experiment, const SimulationSettings& settings)
    : state_(std::make_shared<State>()) {
  state_->experiment = experiment;
  state_->machine = settings.machine;
  state_->nominal = settings.device;
  state_->network = experiment.network(Scale::kFull);
  if (settings.profile.empty()) {
    state_->costs =
        nominal_costs(state_->network.model.make, state_->network.model.row, settings.device);
    return;
  }
  const balance::SavedProfile saved =
      load_profile_of(settings.profile, state_->network.model, state_->network.title);
  state_->costs = measured_costs(saved.profile);
  state_->device = device_of(saved);
  state_->profiled_rows = saved.profile.batch_rows;
}

std::string SimulatedRows::remark() const {
  const State& state = *state_;
  const std::string costs =
      state.device.empty()
          ? absl::StrFormat(
                "FLOPs and bytes at the speeds of a Tesla P40 (%s), multiplied by one factor with "
                "which %s has the %g samples/s %s",
                to_text(state.nominal), state.experiment.reference,
                state.experiment.reference_throughput, state.experiment.reference_source)
          : "those of " + state.device + " (--profile)";
  return (state.experiment.assumed.empty()
              ? "Simulated: published network, sizes and schedule, "
              : "Simulated: published network; sizes, balances and schedule are assumed (see the "
                "notes); ") +
         std::string("without the optimizer's step. Layers' times: ") + costs + ". " +
         to_text(state.machine) + ".";
}

RunVariant SimulatedRows::row(const std::string& variant) const {
  return
      [state = state_, published = find_variant(state_->experiment.variants, variant)](
          Outcome& outcome, const RunContext& context) { state->run(published, outcome, context); };
}

}  // namespace gpipe::experiments
