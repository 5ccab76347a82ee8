// note_other_load: whether other work disturbed a measured row.
#ifndef GPIPE_EXPERIMENTS_FRAME_OTHER_LOAD_H_
#define GPIPE_EXPERIMENTS_FRAME_OTHER_LOAD_H_

#include "command/other_load.h"
#include "experiments/frame/report.h"

namespace gpipe::experiments {

using command::OtherLoad;

// Adds to the outcome of a measured row on the CPU whether other work disturbed it: the settings
// "cores", "other_load" and, with a note, "disturbed". `load` has watched since the row began.
void note_other_load(const OtherLoad& load, Outcome& outcome);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_OTHER_LOAD_H_
