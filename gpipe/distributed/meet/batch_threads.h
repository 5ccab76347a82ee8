// BatchThreads: threads that wait for a core where others have none to spare.
#ifndef GPIPE_DISTRIBUTED_MEET_BATCH_THREADS_H_
#define GPIPE_DISTRIBUTED_MEET_BATCH_THREADS_H_

namespace gpipe::distributed {

// Threads that are started by this thread while this lives are scheduled as SCHED_BATCH, for all
// their life: waking up, they take a core that is idle, and drive nobody from one.
//
// For Gloo's threads. Where there are no more cores than processes, a message wakes the receiver's
// thread on the core of the sender, within its write and with a lock held, for which a thread of
// Gloo's in the sender then spins: half of a small cell's time went there. Nor is a message needed
// while its receiver's worker computes, and once that waits, there is a core.
//
// Changes nothing where the thread does not have the default policy (the threads inherit what it
// has), or where this is not allowed.
class BatchThreads {
 public:
  BatchThreads();
  ~BatchThreads();
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  bool is_changed_ = false;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_BATCH_THREADS_H_
