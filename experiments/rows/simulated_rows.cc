#include "experiments/rows/simulated_rows.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/layer_costs.h"
#include "experiments/rows/row.h"

namespace gpipe::experiments {
namespace {

// By how much a constant may be off: a row's note says how far its result then moves.
constexpr double kOff = 0.3;

// How far a throughput moves, as a share of itself.
struct Movement {
  double least = 0;
  double most = 0;
};

std::string to_text(const Movement& movement) {
  return absl::StrFormat("%+.1f to %+.1f %% where one constant is off by %.0f %%",
                         100 * movement.least, 100 * movement.most, 100 * kOff);
}

// Three devices that take time only for FLOPs, only for bytes and only for operators. Their times
// add up to that of `device`.
std::array<balance::NominalDevice, 3> parts_of(const balance::NominalDevice& device) {
  constexpr double kNoTime = 1e300;  // speeds must be finite
  std::array<balance::NominalDevice, 3> parts;
  parts.fill({kNoTime, kNoTime, 0});
  parts[0].flops_per_second = device.flops_per_second;
  parts[1].bytes_per_second = device.bytes_per_second;
  parts[2].seconds_per_operator = device.seconds_per_operator;
  return parts;
}

}  // namespace

struct SimulatedRows::State {
  SpeedExperiment experiment;
  SimulatedMachine machine;
  balance::NominalDevice nominal;
  Network network;
  LayerCosts costs;
  std::vector<LayerCosts> parts;  // they add up to the counted costs, before the factor
  std::string device;             // the profile's device; empty: there is no profile
  int64_t profiled_rows = 0;      // rows of the profile's micro-batch
  std::optional<double> factor;   // the factor of the counted costs; nullopt: not known yet

  const SpeedVariant& reference() const { return experiment.variants.front(); }
  double reference_throughput() const {
    const SpeedFigures& published = reference().published;
    return std::stod(published.throughput.empty() ? published.script_throughput
                                                  : published.throughput);
  }

  // The factor that gives the reference its throughput.
  double factor_of(const LayerCosts& counted, const SimulatedMachine& there) const {
    return factor_for(reference(), experiment.samples, reference_throughput(), counted, there);
  }

  // The costs are counted when the first row is run, not when the command line is read.
  void calibrate() {
    if (factor) return;
    factor = device.empty() ? factor_of(costs, machine) : 1;
    if (device.empty()) costs = scaled(std::move(costs), *factor);
  }

  // How far the throughput moves if one of the constants is off. Each constant is tried once
  // smaller and once larger.
  Movement movement_of(const SpeedVariant& variant, double throughput) const {
    Movement movement;
    const auto add = [&](const LayerCosts& others, const SimulatedMachine& machine_there) {
      const LayerCosts there =
          device.empty() ? scaled(others, factor_of(others, machine_there)) : others;
      const double moved =
          simulate_speed(variant, experiment.samples, there, machine_there).throughput /
              throughput -
          1;
      movement.least = std::min(movement.least, moved);
      movement.most = std::max(movement.most, moved);
    };
    const LayerCosts as_it_is = device.empty() ? sum_of_times(parts) : costs;
    for (const double times : {1 - kOff, 1 + kOff}) {
      for (size_t k = 0; k < parts.size(); ++k) {
        // The first two constants are speeds: the time of such a part changes inversely.
        std::vector<LayerCosts> changed = parts;
        changed[k] = scaled(changed[k], k < 2 ? 1 / times : times);
        add(sum_of_times(std::move(changed)), machine);
      }
      for (double SimulatedMachine::*const constant :
           {&SimulatedMachine::bandwidth, &SimulatedMachine::latency,
            &SimulatedMachine::overhead}) {
        SimulatedMachine there = machine;
        there.*constant *= times;
        add(as_it_is, there);
      }
    }
    return movement;
  }

  Row row_of(const SpeedVariant& variant) const {
    Row row;
    row.network = network;
    row.batch_size = variant.batch_size;
    row.cut_as_published(variant.balance, variant.chunks, variant.checkpoint);
    return row;
  }

  std::string describe(const SpeedVariant& variant) const {
    std::string text = row_of(variant).describe();
    if (device.empty()) {
      text += absl::StrFormat("; times from FLOPs and bytes, x %.3f", *factor);
      if (variant.name == reference().name) {
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
      add_pipeline(row_of(variant).setup, json);
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
    if (variant.name != reference().name) {
      const Movement movement = movement_of(variant, speed.throughput);
      outcome.settings["moves"] = {movement.least, movement.most};
      outcome.note += "; " + to_text(movement);
    }
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
    for (const balance::NominalDevice& part : parts_of(settings.device)) {
      state_->parts.push_back(
          nominal_costs(state_->network.model.make, state_->network.model.row, part));
    }
    state_->costs = sum_of_times(state_->parts);
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
                to_text(state.nominal), state.reference().name, state.reference_throughput(),
                state.experiment.reference_source)
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
