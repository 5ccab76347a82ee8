// prepare_speed: what the program of a speed table does: its rows measured and simulated.
// measured_speed: such a row, really run on the devices at hand.
#ifndef GPIPE_EXPERIMENTS_ROWS_PREPARE_SPEED_H_
#define GPIPE_EXPERIMENTS_ROWS_PREPARE_SPEED_H_

#include <string>

#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"
#include "experiments/rows/speed_experiment.h"

namespace gpipe::experiments {

// Prepares the rows for run_program(), after that has read the command line. Without --ways, rows
// are measured and simulated; with --chunks or --balance, which simulated rows ignore, they are
// only measured.
//
// Throws std::invalid_argument or c10::ValueError for wrong usage.
ExperimentRun prepare_speed(const SpeedExperiment& experiment);

// Settles how the variant runs at the scale and with the flags, --samples among them. Below full
// scale its network and mini-batches are smaller, and its balance is in proportion. The checkpoint
// mode is the published one unless --checkpoint was given, the schedule is that of --schedule.
//
// Throws std::invalid_argument or c10::ValueError if flags do not fit.
RunVariant measured_speed(const SpeedExperiment& experiment, const CommonFlags& flags,
                          const std::string& variant);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_PREPARE_SPEED_H_
