// WorkerPool: long-lived threads that run one function together.
//
// A WorkerPool is below the executor, so it knows threads, but no schedules. A pool lives as long
// as its pipeline, so that no thread is started or ended in a training step.
#ifndef GPIPE_RUNTIME_WORKER_POOL_H_
#define GPIPE_RUNTIME_WORKER_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/first_error.h"
#include "gpipe/runtime/fork_guard.h"

namespace gpipe::internal {

// A pool of `workers` threads. With `inline_single`, a pool of one worker has no thread: the body
// runs on the calling thread.
//
// Requirements: run() is called by one thread at a time, never from a worker of the same pool. The
// body neither throws nor waits for another call of run().
//
// Guarantees: worker w is the same thread in every run. run() returns after every body has
// returned, and what the bodies wrote is visible to the caller. `init` and bodies run in a
// WorkScope (exit_gate.h).
//
// Example:
//   WorkerPool pool(4);
//   pool.run([](int64_t worker) { work(worker); });
class WorkerPool {
 public:
  using Body = std::function<void(int64_t worker)>;

  // `init` runs once on each worker thread before anything else (never for an inline worker).
  // Throws std::system_error if a thread cannot be started, and throws the first exception of
  // `init`. No thread is left in either case.
  explicit WorkerPool(int64_t workers, const Body& init = nullptr, bool inline_single = false);
  // Ends and joins the threads. Only forgets them in a forked child, which does not have them, and
  // if the process ends in the middle of a run.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // `while_waiting`, if any, is called on the calling thread from time to time (interruption.h)
  // until the bodies have returned. It must not throw. It is not called if the worker is inline,
  // because no thread waits then.
  //
  // Throws std::logic_error in a child process that was forked after the pool was made.
  void run(const Body& body, const std::function<void()>& while_waiting = nullptr);

  int64_t size() const { return workers_; }
  // Whether run() runs its body on the calling thread.
  bool is_inline() const { return state_ == nullptr; }

 private:
  // The State is on the heap, so that a forked child can leave it alone. Destroying a condition
  // variable waits for its waiters, which do not exist in the child.
  struct State {
    explicit State(int64_t workers) : seats(workers), unfinished(workers) {}

    // The place where a worker sleeps between runs. Each worker has a mutex of its own, so that
    // workers that are woken together do not wait for each other.
    struct Seat {
      std::mutex mutex;
      std::condition_variable changed;
    };
    std::vector<std::thread> threads;
    std::vector<Seat> seats;
    const Body* body = nullptr;           // written before `round`
    bool for_exit = on_exiting_thread();  // whether the caller is the thread in exit(); like `body`
    std::atomic<uint64_t> round{0};       // counts runs; a worker runs each of them once
    std::atomic<bool> stop{false};

    std::mutex mutex;
    std::condition_variable finish;
    std::atomic<int64_t> unfinished;
  };

  static void wake_all(State& state);
  static void wait_until_finished(State& state,
                                  const std::function<void()>& while_waiting = nullptr);
  static void stop_and_join(State& state);
  static void loop(State& state, int64_t worker, const Body& init, FirstError& init_error);

  int64_t workers_;
  ForkGuard fork_guard_;
  std::unique_ptr<State> state_;  // null if there are no threads
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_WORKER_POOL_H_
