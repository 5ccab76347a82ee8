// ExitGate: keeps running pipelines and the end of the process apart.
//
// exit() and the return from main destroy static objects, LibTorch's among them, while other
// threads go on. An operator that runs then throws, crashes or hangs. So code that must not run at
// that time runs in a WorkScope. A handler of exit() shuts the gate: it lets no more threads in and
// waits for those that are inside. It never opens the gate again: a thread that comes too late
// stays at the gate until the process is gone.
#ifndef GPIPE_RUNTIME_EXIT_GATE_H_
#define GPIPE_RUNTIME_EXIT_GATE_H_

#include <chrono>
#include <cstdint>

namespace gpipe::internal {

// The functions and scopes below are process-wide. After fork(), only the thread that called fork()
// counts as at work in the child.
//
// Guarantees: these functions and scopes hold no lock while they block.
//
// Thread-safety: all are thread-safe.
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

// Makes exit() shut the gate. exit() runs its handlers and destructors in reverse order of
// registration, and some objects that a pipeline uses are created at first use. So call this again
// and again: it registers the handler in each of the first calls, then more and more rarely.
// `in_any_case`: it registers the handler now, because the caller has just made such an object.
void shut_at_exit(bool in_any_case = false);

// Whether the gate is shut.
bool exiting();

// Whether this thread is the one that shut the gate. That thread is never blocked: the destructor
// of a static object may still use a pipeline.
bool on_exiting_thread();

// `prepare` is called by a thread outside of a WorkScope that shuts the gate, before it waits. It
// returns whether a thread at work waits for the calling thread, as a stage does for a thread that
// autograd uses on its behalf. Then the gate does not wait for one thread. Null, the default: no.
void set_exit_preparation(bool (*prepare)());

// This function is the handler that shut_at_exit() registers. It shuts the gate and waits, no
// longer than `patience`, until no other thread is at work, i.e. in a WorkScope and not in a
// WaitScope; a thread that waits for the calling one is left out. Returns false if some thread
// still is.
bool shut_exit_gate(std::chrono::milliseconds patience);

// While the scope lives, this thread is at work. Scopes nest. `for_exit`: the thread works on
// behalf of the thread for which on_exiting_thread() is true.
class WorkScope {
 public:
  explicit WorkScope(bool for_exit = false);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  bool set_for_exit_;
};

// Used within a WorkScope: this thread waits for others and is not at work. Outside of a WorkScope
// it has no effect. When the WaitScope ends, the thread must not hold a lock that a thread at work
// needs, since the end may block forever.
class WaitScope {
 public:
  WaitScope();
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
};

// Call this within a WorkScope, at a point where the thread can safely stop: if the gate is shut,
// the thread stays here.
void stay_if_exiting();

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_EXIT_GATE_H_
