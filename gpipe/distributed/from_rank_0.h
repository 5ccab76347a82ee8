// from_rank_0: gives all processes what rank 0 computes, e.g. a schedule from a search, or a plan.
#ifndef GPIPE_DISTRIBUTED_FROM_RANK_0_H_
#define GPIPE_DISTRIBUTED_FROM_RANK_0_H_

#include <functional>
#include <string>

#include "gpipe/world.h"

namespace gpipe {

// Calls `make` on rank 0 and returns its text, of any length, on all ranks, which wait as long as
// it takes. Use it for results that would cost each rank the time, or that would differ between
// ranks: a search that Ctrl-C or a deadline ends, or a measured profile. All ranks call it, in the
// same order as steps and other calls of a World. In a World of one process it returns make().
//
// If `make` throws, rank 0 throws the same, and the other ranks throw std::runtime_error with its
// text. No process has failed then, and all may go on. Throws
// gpipe::distributed::DistributedFailure if a process fails meanwhile.
//
// Example:
//   const auto table = gpipe::Schedule::from_text(gpipe::from_rank_0(
//       world, [&] { return gpipe::search(options).schedule.to_text(); }));
std::string from_rank_0(const World& world, const std::function<std::string()>& make);

}  // namespace gpipe

#endif  // GPIPE_DISTRIBUTED_FROM_RANK_0_H_
