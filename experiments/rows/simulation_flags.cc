#include "experiments/rows/simulation_flags.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"
#include "experiments/frame/balance.h"
#include "experiments/frame/flags.h"
#include "experiments/rows/layer_costs.h"

ABSL_FLAG(std::string, profile, "",
          "Simulate with the layers' times of this file, which "
          "tools/bazel run //balance -- --save_profile=FILE writes. Default: FLOPs and bytes "
          "of each layer, at the speed that gives the table's reference its published throughput.");
ABSL_FLAG(double, link_bandwidth, gpipe::experiments::SimulatedMachine().bandwidth,
          "Simulate with links of so many bytes per second between devices; 0: transfers take only "
          "their latency. (About PCIe 3 x16 if not given.)");
ABSL_FLAG(double, link_latency, gpipe::experiments::SimulatedMachine().latency,
          "Simulate with so many seconds for each transfer, in addition to those for its bytes.");
ABSL_FLAG(double, action_overhead, gpipe::experiments::SimulatedMachine().overhead,
          "Simulate with so many seconds for each forward or backward of a partition, in addition "
          "to those of its layers.");

ABSL_FLAG(double, device_flops, gpipe::experiments::tesla_p40().flops_per_second,
          "Count the layers' times, without a profile, for a device of so many FLOPs per second. "
          "(If not given: a Tesla P40's, by its data sheet; so is --device_bandwidth.)");
ABSL_FLAG(double, device_bandwidth, gpipe::experiments::tesla_p40().bytes_per_second,
          "As --device_flops: bytes per second of the device's memory.");
ABSL_FLAG(
    double, operator_overhead, gpipe::experiments::tesla_p40().seconds_per_operator,
    "As --device_flops: seconds for each operator, in addition to those for its FLOPs and bytes.");

// The flags of flags.h that name files.
ABSL_DECLARE_FLAG(std::string, json);
ABSL_DECLARE_FLAG(std::string, trace);

namespace gpipe::experiments {
namespace {

constexpr double kFastest = 1e30;  // FLOPs or bytes per second

double speed_flag(const char* flag, double value) {
  return command::at_least(flag, value, 1e-9, kFastest);
}

}  // namespace

SimulationSettings simulation_flags() {
  SimulationSettings settings;
  command::FileFlags files;
  for (const auto& [name, flag] : {std::pair("json", &FLAGS_json), {"trace", &FLAGS_trace}}) {
    files.output(name, absl::GetFlag(*flag));
  }
  settings.profile = files.input("profile", absl::GetFlag(FLAGS_profile));
  settings.machine.bandwidth =
      command::at_least("link_bandwidth", absl::GetFlag(FLAGS_link_bandwidth), 0, kFastest);
  settings.machine.latency =
      command::at_least("link_latency", absl::GetFlag(FLAGS_link_latency), 0);
  settings.machine.overhead =
      command::at_least("action_overhead", absl::GetFlag(FLAGS_action_overhead), 0);
  settings.device.flops_per_second = speed_flag("device_flops", absl::GetFlag(FLAGS_device_flops));
  settings.device.bytes_per_second =
      speed_flag("device_bandwidth", absl::GetFlag(FLAGS_device_bandwidth));
  settings.device.seconds_per_operator =
      command::at_least("operator_overhead", absl::GetFlag(FLAGS_operator_overhead), 0);
  const std::string counted =
      first_given({"device_flops", "device_bandwidth", "operator_overhead"});
  if (!settings.profile.empty() && !counted.empty()) {
    throw std::invalid_argument(
        counted +
        " is for counted times, but --profile gives measured ones; leave one of the two out");
  }
  return settings;
}

std::string given_simulation_flag() {
  return first_given({"profile", "link_bandwidth", "link_latency", "action_overhead",
                      "device_flops", "device_bandwidth", "operator_overhead"});
}

std::string to_text(const SimulatedMachine& machine) {
  const std::string bandwidth =
      machine.bandwidth > 0 ? absl::StrFormat("%g GB/s", machine.bandwidth / 1e9) : "no limit";
  return absl::StrFormat("Links: %s, %g us; %g us for each action", bandwidth,
                         machine.latency * 1e6, machine.overhead * 1e6);
}

std::string to_text(const balance::NominalDevice& device) {
  return absl::StrFormat("%g TFLOP/s, %g GB/s, %g us for each operator",
                         device.flops_per_second / 1e12, device.bytes_per_second / 1e9,
                         device.seconds_per_operator * 1e6);
}

balance::SavedProfile load_profile_of(const std::string& file, const models::NamedModel& model,
                                      const std::string& title) {
  balance::SavedProfile saved = balance::load_profile(file);
  const std::string advice = "; write one with tools/bazel run //balance -- --model=" + model.name +
                             " --partitions=1 --chunks=1 --batch=ROWS --save_profile=" + file +
                             ", where ROWS are those of a micro-batch";
  if (!saved.model.empty() && saved.model != model.name) {
    throw std::invalid_argument("--profile=" + file + " is of " + saved.model +
                                ", but this table's network is " + model.name + advice);
  }
  const int64_t layers = layers_of(model);
  if (static_cast<int64_t>(saved.profile.layers.size()) != layers) {
    throw std::invalid_argument("--profile=" + file + " has " +
                                std::to_string(saved.profile.layers.size()) + " layers, but " +
                                title + " has " + std::to_string(layers) + advice);
  }
  return saved;
}

std::string device_of(const balance::SavedProfile& saved) {
  return saved.profile.device.empty() ? "a device without a name" : saved.profile.device;
}

}  // namespace gpipe::experiments
