// default_generators: who may meddle with the devices' default generators of random numbers.
#ifndef GPIPE_INTERNAL_DEFAULT_GENERATORS_H_
#define GPIPE_INTERNAL_DEFAULT_GENERATORS_H_

#include <mutex>

namespace gpipe::internal {

// Held by whoever records a graph, because LibTorch's default generators know of one recording only
// and refuse to draw meanwhile, and by whoever has put a default generator into another state.
std::mutex& default_generators_mutex();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_DEFAULT_GENERATORS_H_
