// replay: runs recorded calls again, with the LibTorch that the program is built with.
#ifndef GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_REPLAY_H_
#define GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_REPLAY_H_

#include <cstdint>

#include "experiments/libtorch_versions/calls.h"

namespace gpipe::experiments {

// On copies of its arguments, without autograd, with the generator seeded. Arguments are found by
// their names, or by their places if they have new names; one that the recording lacks has its
// default. A call that cannot be made here, or
// throws, says why (Result::failure).
Result replay(const Call& call);

// All of them, each four times, with so many threads of LibTorch's.
Replay replay(const Recording& recording, int64_t threads);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_REPLAY_H_
