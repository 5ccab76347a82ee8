#include "gpipe/runtime/worker_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>

#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/first_error.h"
#include "gpipe/runtime/interruption.h"

namespace gpipe::internal {

WorkerPool::WorkerPool(int64_t workers, const Body& init, bool inline_single) : workers_(workers) {
  if (workers < 0) {
    throw std::invalid_argument("WorkerPool: the number of workers must not be negative, got " +
                                std::to_string(workers));
  }
  if (workers == 0 || (workers == 1 && inline_single)) return;
  state_ = std::make_unique<State>(workers);
  State& state = *state_;
  FirstError init_error;
  try {
    state.threads.reserve(workers);
    for (int64_t worker = 0; worker < workers; ++worker) {
      state.threads.emplace_back(
          [&state, worker, &init, &init_error] { loop(state, worker, init, init_error); });
    }
    // `init` belongs to the caller, so no worker may use it after the constructor has returned.
    wait_until_finished(state);
    init_error.rethrow();
  } catch (const std::system_error& error) {
    const size_t started = state.threads.size();
    const WaitScope wait;
    stop_and_join(state);
    if (started == static_cast<size_t>(workers)) throw;  // thrown by `init`
    throw std::system_error(
        error.code(), "of the " + std::to_string(workers) +
                          " worker threads of a pipeline, one for each partition, number " +
                          std::to_string(started + 1) +
                          " could not be started; give fewer partitions, or raise the limit on "
                          "threads (ulimit -u, the container's limit on processes) or on memory");
  } catch (...) {
    const WaitScope wait;
    stop_and_join(state);
    throw;
  }
}

WorkerPool::~WorkerPool() {
  if (!state_) return;
  const auto is_this = [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  };
  // The threads are not joined in these cases. In a forked child they are in the parent. If the
  // process ends in the middle of a run, the workers stay where they are. One of them may have
  // called exit(), which runs this destructor.
  if (fork_guard_.stale() || (exiting() && state_->unfinished != 0) ||
      std::any_of(state_->threads.begin(), state_->threads.end(), is_this)) {
    (void)state_.release();
    return;
  }
  // This makes exit() wait for the ends of the threads, where LibTorch's thread-local destructors
  // run.
  const WorkScope work;
  stop_and_join(*state_);
}

void WorkerPool::run(const Body& body, const std::function<void()>& while_waiting) {
  if (!state_) {
    if (workers_ == 0) return;
    const WorkScope work;
    body(0);
    return;
  }
  fork_guard_.check();
  state_->body = &body;
  state_->for_exit = on_exiting_thread();
  state_->unfinished = workers_;
  ++state_->round;
  wake_all(*state_);
  wait_until_finished(*state_, while_waiting);
  state_->body = nullptr;
}

void WorkerPool::wait_until_finished(State& state, const std::function<void()>& while_waiting) {
  const WaitScope wait;
  std::unique_lock<std::mutex> lock(state.mutex);
  const auto finished = [&] { return state.unfinished == 0; };
  if (!while_waiting) return state.finish.wait(lock, finished);
  while (!state.finish.wait_for(lock, kInterruptionPeriod, finished)) {
    lock.unlock();  // a worker that finishes takes the mutex
    while_waiting();
    lock.lock();
  }
}

void WorkerPool::stop_and_join(State& state) {
  state.stop = true;
  wake_all(state);
  for (std::thread& thread : state.threads) thread.join();
}

void WorkerPool::wake_all(State& state) {
  for (State::Seat& seat : state.seats) {
    // The mutex is taken so that the sleeper is not between its last check and its wait: it would
    // miss the notification.
    { std::lock_guard<std::mutex> lock(seat.mutex); }
    seat.changed.notify_one();
  }
}

void WorkerPool::loop(State& state, int64_t worker, const Body& init, FirstError& init_error) {
  if (init) {
    const WorkScope work(state.for_exit);
    try {
      init(worker);
    } catch (...) {
      init_error.set(std::current_exception());
    }
  }
  State::Seat& seat = state.seats[worker];
  for (uint64_t done_round = 0;; ++done_round) {
    if (--state.unfinished == 0) {
      { std::lock_guard<std::mutex> lock(state.mutex); }
      state.finish.notify_one();
    }
    {
      std::unique_lock<std::mutex> lock(seat.mutex);
      seat.changed.wait(lock, [&] { return state.stop || state.round != done_round; });
    }
    if (state.stop) return;
    const WorkScope work(state.for_exit);
    (*state.body)(worker);
  }
}

}  // namespace gpipe::internal
