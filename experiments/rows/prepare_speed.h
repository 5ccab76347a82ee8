// prepare_speed: what the program of a speed table does: its rows measured and simulated.
#ifndef GPIPE_EXPERIMENTS_ROWS_PREPARE_SPEED_H_
#define GPIPE_EXPERIMENTS_ROWS_PREPARE_SPEED_H_

#include "experiments/frame/program.h"
#include "experiments/rows/speed_experiment.h"

namespace gpipe::experiments {

// Prepares the rows for run_program(), after that has read the command line. Without --ways, rows
// are measured and simulated; with --chunks or --balance, which simulated rows ignore, they are
// only measured.
//
// Throws std::invalid_argument or c10::ValueError for wrong usage.
ExperimentRun prepare_speed(const SpeedExperiment& experiment);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_PREPARE_SPEED_H_
