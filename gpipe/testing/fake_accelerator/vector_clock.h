// VectorClock: how much of each stream's work is known to be over before some point.
//
// The time of a stream is the number of tasks enqueued on it. A point (a task, a recorded event,
// the host) that has seen time t of a stream comes after that stream's first t tasks, however fast
// the threads run. See Mattern, "Virtual Time and Global States of Distributed Systems" (1989).
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_VECTOR_CLOCK_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_VECTOR_CLOCK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe::testing::fake {

// A value; streams are numbered from 0, densely.
//
// Thread-safety: the same as that of an int.
class VectorClock {
 public:
  // The time of `stream` that has been seen; 0 if none of its work has.
  uint64_t of(int stream) const;
  // Whether task number `time` of `stream` comes before this point.
  bool has_seen(int stream, uint64_t time) const { return of(stream) >= time; }
  // From now on the point is also after task number `time` of `stream`. It never goes back.
  void see(int stream, uint64_t time);
  // From now on the point is also after everything that `other` is after.
  void join(const VectorClock& other);

 private:
  std::vector<uint64_t> times_;  // by stream; entries that are missing at the end are 0
};

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_VECTOR_CLOCK_H_
