// ExitGate: keeps the end of the process and running pipelines apart.
//
// exit() and the return from main destroy static objects, LibTorch's among them, while the other
// threads go on; an operator that runs then throws, crashes or hangs. So whatever must not run
// beside that does so in a WorkScope, and a handler of exit() lets nobody in any more and waits
// for those who are in. It lets go of nobody either: a thread that comes too late stays there until
// the process is gone.
#ifndef GPIPE_RUNTIME_EXIT_GATE_H_
#define GPIPE_RUNTIME_EXIT_GATE_H_

#include <chrono>
#include <cstdint>

namespace gpipe::internal {

// All of these are process-wide, thread-safe, and hold no lock while they block. In a forked child
// only the thread that called fork() is still at work.
//
// Example:
//   shut_at_exit();                                  // once what is used in a WorkScope exists
//   {
//     const WorkScope work;
//     compute();
//     WaitScope wait;                                // others compute; exit() need not wait for us
//     std::unique_lock<std::mutex> lock(mutex);      // after `wait`: released before work goes on
//     changed.wait(lock, ...);
//   }

// Makes exit() shut the gate. exit() undoes in reverse order, and some of what a pipeline uses is
// made at its first use. So call it again and again: it registers the handler in each of the first
// calls and then ever more rarely.
void shut_at_exit();

// Whether the gate is shut.
bool exiting();

// Whether this thread is the one that shut the gate. It is never held up: the destructor of a
// static object may still use a pipeline.
bool on_exiting_thread();

// What shut_at_exit() registers. Waits, no longer than `patience`, until no thread but this one is
// in a WorkScope; false if some still are.
bool shut_exit_gate(std::chrono::milliseconds patience);

// This thread is at work. Scopes nest. `for_exit`: on behalf of a thread that is
// on_exiting_thread().
class WorkScope {
 public:
  explicit WorkScope(bool for_exit = false);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  bool set_for_exit_;
};

// Within a WorkScope (else without effect): this thread waits for others and is not at work. Must
// end without a lock that somebody needs who is at work, since it may never end.
class WaitScope {
 public:
  WaitScope();
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
};

// Within a WorkScope: a good place to stay where the gate is shut.
void stay_if_exiting();

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_EXIT_GATE_H_
