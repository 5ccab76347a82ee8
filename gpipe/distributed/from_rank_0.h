// from_rank_0: what one process finds, for all of them: a schedule that was searched, a plan.
#ifndef GPIPE_DISTRIBUTED_FROM_RANK_0_H_
#define GPIPE_DISTRIBUTED_FROM_RANK_0_H_

#include <functional>
#include <string>

#include "gpipe/world.h"

namespace gpipe {

// Calls `make` on rank 0 and returns its text, of any length, on all ranks, which wait as long as
// it takes. For what would take each of them the time, or differ: a search that Ctrl-C or a
// deadline ends, a measured profile. All ranks call it, in the same order as steps and other calls
// of a World. Alone it is make().
//
// Throws what `make` throws, on rank 0, and std::runtime_error with its text on the others: no
// process has failed then, and all may go on. gpipe::distributed::DistributedFailure if one fails
// meanwhile.
//
// Example:
//   const auto table = gpipe::Schedule::from_text(gpipe::from_rank_0(
//       world, [&] { return gpipe::search(options).schedule.to_text(); }));
std::string from_rank_0(const World& world, const std::function<std::string()>& make);

}  // namespace gpipe

#endif  // GPIPE_DISTRIBUTED_FROM_RANK_0_H_
