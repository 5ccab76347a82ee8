// SimulatedRows: the rows of a speed table by simulation, at full size.
#ifndef GPIPE_EXPERIMENTS_ROWS_SIMULATED_ROWS_H_
#define GPIPE_EXPERIMENTS_ROWS_SIMULATED_ROWS_H_

#include <memory>
#include <string>

#include "experiments/frame/program.h"
#include "experiments/rows/simulation_flags.h"
#include "experiments/rows/speed_experiment.h"

namespace gpipe::experiments {

// Rows have the published settings of their variants, the fill-drain schedule among them, whatever
// the other flags say.
//
// The layers' times are those of the profile; times for other sizes of a micro-batch are taken as
// proportional. Without a profile they are counted (nominal_costs()) for a Tesla P40, the published
// device, and multiplied by the one factor that gives the experiment's reference its published
// throughput.
//
// Thread-safety: none.
class SimulatedRows {
 public:
  // Reads the profile. Throws std::invalid_argument if it cannot be read or is of another network.
  SimulatedRows(const SpeedExperiment& experiment, const SimulationSettings& settings);

  // A line below the table that says what holds for all rows.
  std::string remark() const;

  // Throws std::invalid_argument for an unknown variant. The result may be called after this object
  // is gone.
  RunVariant row(const std::string& variant) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SIMULATED_ROWS_H_
