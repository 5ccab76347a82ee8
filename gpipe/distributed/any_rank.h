// any_rank: tells all processes that one of them was told something, e.g. by a signal that asks to
// save and to end.
#ifndef GPIPE_DISTRIBUTED_ANY_RANK_H_
#define GPIPE_DISTRIBUTED_ANY_RANK_H_

#include "gpipe/world.h"

namespace gpipe {

// Whether `here` is true on any rank. The result is the same on all ranks, so all can act alike.
// All ranks call it, in the same order as steps and other calls of a World, e.g. after each step:
// it exchanges one byte. In a World of one process it returns `here`.
//
// A signal may come between the calls of two ranks. So no rank may act on its own signal at once:
// the ranks would save after different steps. docs/guide/33-failing-processes.md has the loop.
//
// Throws gpipe::distributed::DistributedFailure if a process fails meanwhile.
//
// Example:
//   if (gpipe::any_rank(world, was_told)) {  // a std::sig_atomic_t that a handler of SIGUSR1 sets
//     gpipe::save_checkpoint(pipe, optimizer, {step, rows}, path);
//     break;
//   }
bool any_rank(const World& world, bool here);

}  // namespace gpipe

#endif  // GPIPE_DISTRIBUTED_ANY_RANK_H_
