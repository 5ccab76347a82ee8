// KnownThreads: which threads have done something before.
#ifndef GPIPE_INTERNAL_GRAPHS_KNOWN_THREADS_H_
#define GPIPE_INTERNAL_GRAPHS_KNOWN_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe::internal {

// Keeps the threads that were added, but only the last kMost.
class KnownThreads {
 public:
  bool has_this() const;
  // Adds this thread. Returns whether it was known before.
  bool add_this();

 private:
  static constexpr size_t kMost = 16;
  std::vector<int64_t> numbers_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_KNOWN_THREADS_H_
