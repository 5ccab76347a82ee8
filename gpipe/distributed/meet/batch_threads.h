// BatchThreads: starts threads that take an idle core when they wake up, and preempt no thread.
#ifndef GPIPE_DISTRIBUTED_MEET_BATCH_THREADS_H_
#define GPIPE_DISTRIBUTED_MEET_BATCH_THREADS_H_

namespace gpipe::distributed {

// Threads that the calling thread starts while this object lives are scheduled as SCHED_BATCH for
// all their life: when they wake up, they take an idle core and preempt no other thread.
//
// It is for Gloo's threads. If a machine has no more cores than processes, a message wakes the
// receiver's thread on the core of the sender, inside the sender's write and while it holds a lock.
// A Gloo thread of the sender then spins for that lock, which took half of a small cell's time. As
// long as the receiver's worker computes, it does not need the message. Once it waits, a core is
// idle.
//
// Changes nothing if the calling thread does not have the default policy (the new threads inherit
// its policy), or if the system does not allow the change.
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
