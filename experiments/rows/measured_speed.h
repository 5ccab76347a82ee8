// measured_speed: a row of a speed table, really run on the devices at hand.
#ifndef GPIPE_EXPERIMENTS_ROWS_MEASURED_SPEED_H_
#define GPIPE_EXPERIMENTS_ROWS_MEASURED_SPEED_H_

#include <cstdint>
#include <string>

#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"
#include "experiments/frame/scale.h"
#include "experiments/rows/speed_experiment.h"

namespace gpipe::experiments {

// Settles how the variant runs at the scale and with the flags, --samples among them. Below full
// scale its network and mini-batches are smaller, and its balance is in proportion. The checkpoint
// mode is the published one unless --checkpoint was given, the schedule is that of --schedule.
//
// Throws std::invalid_argument or c10::ValueError if flags do not fit.
RunVariant measured_speed(const SpeedExperiment& experiment, const CommonFlags& flags,
                          const std::string& variant);

// How often each row is measured (Variant::rounds): --rounds, or what the scale has. Throws
// std::invalid_argument for less than 1.
int64_t rounds_of(Scale scale);

// Throws std::invalid_argument for a flag of measured_speed() that is not valid for any row.
void check_measured_speed_flags();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_MEASURED_SPEED_H_
