// default_generators: a lock on the devices' default generators of random numbers.
#ifndef GPIPE_INTERNAL_THREADS_DEFAULT_GENERATORS_H_
#define GPIPE_INTERNAL_THREADS_DEFAULT_GENERATORS_H_

#include <mutex>

namespace gpipe::internal {

// A thread holds this mutex while it records or destroys a graph, because LibTorch's default
// generators know of one recording only, refuse to draw during it, and keep a list of graphs
// without a lock of their own. A thread also holds it while it has put a default generator into
// another state. The mutex is recursive, because a recorded layer may drop the last reference to an
// older graph.
std::recursive_mutex& default_generators_mutex();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_DEFAULT_GENERATORS_H_
