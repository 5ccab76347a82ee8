// recomputed_cells: which cells of a step recompute their activations.
#ifndef BALANCE_STEP_RECOMPUTED_CELLS_H_
#define BALANCE_STEP_RECOMPUTED_CELLS_H_

#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// [stage][micro-batch] Whether the cell recomputes, with these modes of the stages.
// Under kExceptLast all cells recompute except those whose backward follows at once
// (gpipe/schedule/follows_at_once.h). Throws std::out_of_range for fewer modes than stages.
std::vector<std::vector<bool>> recomputed_cells(const Schedule& schedule,
                                                const std::vector<Checkpoint>& modes);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_RECOMPUTED_CELLS_H_
