// meet(): the processes of a run meet, at its start and again each time that some of them have
// died.
//
// World::from_environment() is for a run that ends when one of its processes does. A program that
// calls meet() instead can go on: each call gives a new World, of the processes that are left and
// of those that the launcher has started again (//gpipe/distributed:launch, --restarts).
#ifndef GPIPE_RESILIENT_MEET_AGAIN_H_
#define GPIPE_RESILIENT_MEET_AGAIN_H_

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/world.h"

namespace gpipe {

// One world of a run. A value.
struct Meeting {
  // Its local_rank() stays that of the process. A process that takes the place of another one, as a
  // spare, has a local rank that is free, whatever LOCAL_RANK says.
  World world;
  // Rises with each world of the run, from 1; numbers may be left out. All ranks have the same.
  int64_t generation = 0;
  // For each rank of `world`, its rank in the world of the run before this one; -1: a newcomer,
  // which has nothing of that world. Survivors come first, in their former order. The same on all
  // ranks. In the first world, and if all processes of the former one have died, all are newcomers.
  std::vector<int64_t> came_from;

  int64_t newcomers() const {
    int64_t count = 0;
    for (const int64_t rank : came_from) count += rank < 0 ? 1 : 0;
    return count;
  }
};

// Thrown by meet() in a process that the others have gone on without, as one that was stopped for
// longer than silence_limit. The process must end; the launcher may start it again as a newcomer.
class WorldIsOver : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct MeetAgainOptions {
  // The faults of the DistributedFailure that has ended the world before. Processes that were
  // silent are waited for 2 s only, because the others have waited for them already.
  std::vector<distributed::Fault> faults;
  // The new world has a multiple of so many processes, if so many come. The last survivors that are
  // left over wait, within the call, for a later world, in which they are newcomers. The same in
  // all processes; a newcomer's does not count. Nor does it count in the first world, or in one
  // behind a loss, since those that are left over may hold what only the lost process had. To have
  // a multiple then, take over what they hold, and call meet() once more, as ResilientRun does.
  int64_t multiple_of = 1;
};

// Waits for the other processes, and connects them. Called first instead of
// World::from_environment(), and again after a DistributedFailure, or whenever all processes agree
// to. If a process dies while they meet, the others meet again, within the call.
//
// Those that have asked wait for all processes that live: for rendezvous_limit in the first world,
// which needs them all. In later ones they wait for silence_limit, and for a process that was just
// started 20 s at least; a process that does not come in time is left out. A newcomer that comes
// when a world exists waits for the next one.
//
// A process that cannot reach the launcher, or whose line to it is cut while it waits, tries again
// for silence_limit and 5 s if only silence has ended its world, for it may be the one that is cut
// off. Otherwise it tries for twice silence_limit and 30 s.
//
// The processes need the launcher //gpipe/distributed:launch to meet again. Started by another one,
// the first call is World::from_environment(), and the second one throws.
//
// Requirements: the World of the call before is destroyed, with the pipelines, optimizers and
// copies that use that World. One thread at a time.
//
// Throws WorldIsOver; std::logic_error if the former World still lives, or if nobody keeps a
// meeting place; DistributedFailure if processes that live fail to connect, three times in a row;
// otherwise what World::from_environment() throws, except for the death of a process.
Meeting meet(const WorldOptions& options = {}, const MeetAgainOptions& again = {});

// Whether meet() can be called again after a death: the launcher keeps a meeting place.
bool can_meet_again();

namespace internal {

// How long a process tries to reach the meeting place: as long as the others may still wait for it.
// `limit`: silence_limit. `faults`: that have ended its world.
std::chrono::milliseconds patience_with_place(std::chrono::milliseconds limit,
                                              const std::vector<distributed::Fault>& faults);

}  // namespace internal
}  // namespace gpipe

#endif  // GPIPE_RESILIENT_MEET_AGAIN_H_
