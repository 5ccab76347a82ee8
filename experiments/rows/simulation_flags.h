// simulation_flags: the settings of simulated rows.
#ifndef GPIPE_EXPERIMENTS_ROWS_SIMULATION_FLAGS_H_
#define GPIPE_EXPERIMENTS_ROWS_SIMULATION_FLAGS_H_

#include <string>

#include "balance/costs/flops.h"
#include "balance/costs/profile_file.h"
#include "experiments/rows/layer_costs.h"
#include "experiments/rows/simulated_speed.h"
#include "models/by_name.h"

namespace gpipe::experiments {

struct SimulationSettings {
  std::string profile;  // a file of //balance --save_profile; empty: none
  SimulatedMachine machine;
  // The device for which costs are counted if there is no profile.
  balance::NominalDevice device = tesla_p40();
};

// Reads --profile, --link_bandwidth, --link_latency, --action_overhead, --device_flops,
// --device_bandwidth and --operator_overhead. Throws std::invalid_argument for values out of range.
SimulationSettings simulation_flags();

// The first of these flags that was given: "--profile". Empty: none.
std::string given_simulation_flag();

// The machine as text, like "Links: 12 GB/s, 10 us; 10 us for each action".
std::string to_text(const SimulatedMachine& machine);
// The device as text, like "11.76 TFLOP/s, 346 GB/s, 5 us for each operator".
std::string to_text(const balance::NominalDevice& device);

// Loads a profile of `model` from a file; messages call the model `title`. Throws
// std::invalid_argument if it cannot be read or is of another network.
balance::SavedProfile load_profile_of(const std::string& file, const models::NamedModel& model,
                                      const std::string& title);
// The device that was profiled: "a Tesla P40".
std::string device_of(const balance::SavedProfile& saved);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SIMULATION_FLAGS_H_
