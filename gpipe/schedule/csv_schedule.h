// schedule_from_csv: reads the tables in which torch.distributed.pipelining keeps schedules.
#ifndef GPIPE_SCHEDULE_CSV_SCHEDULE_H_
#define GPIPE_SCHEDULE_CSV_SCHEDULE_H_

#include <string_view>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// The schedule of a CSV file as PyTorch and torchtitan write and read them: a row for each rank,
// which becomes a worker, and a cell for each action, such as 2F0: stage 2, micro-batch 0. There
// are as many stages and micro-batches as the largest numbers say.
//
// F, B, I and W mean the same as in Action. Files of 2024, however, write BW for a whole backward,
// and B for an input gradient. So B is taken as an input gradient if the row also has a W of the
// same stage and micro-batch, but no I. "(2F1;3B0)OVERLAP_F_B" becomes both actions, one after the
// other. Empty cells are left out. So are SEND_F, RECV_F, SEND_B and RECV_B, because transfers
// happen by themselves here, and UNSHARD, RESHARD and REDUCE_GRAD, because parameters are not
// sharded.
//
// Throws std::invalid_argument, with the row and the cell, for anything else, and as
// Schedule::create does. Schedule::verify() says whether the table makes sense.
Schedule schedule_from_csv(std::string_view text);

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_CSV_SCHEDULE_H_
