// replay: runs recorded calls again, with the LibTorch that the program is built with.
#ifndef GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_REPLAY_H_
#define GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_REPLAY_H_

#include <cstdint>

#include "experiments/libtorch_versions/calls.h"

namespace gpipe::experiments {

// Makes the call on copies of its arguments, without autograd, with a seeded generator. Arguments
// are found by their names, or by their places if they were renamed; one that the recording lacks
// has its default. If the call cannot be made here, or throws, Result::failure says why.
Result replay(const Call& call);

// Replays all calls with `threads` threads of LibTorch, each call four times (see Result::tensors).
Replay replay(const Recording& recording, int64_t threads);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_REPLAY_H_
