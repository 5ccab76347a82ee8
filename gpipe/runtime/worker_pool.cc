#include "gpipe/runtime/worker_pool.h"

#include <stdexcept>
#include <string>

namespace gpipe::internal {

WorkerPool::WorkerPool(int64_t workers, const Body& init, bool inline_single) : workers_(workers) {
  if (workers < 0) {
    throw std::invalid_argument("WorkerPool: the number of workers must not be negative, got " +
                                std::to_string(workers));
  }
  if (workers == 0 || (workers == 1 && inline_single)) return;
  state_ = std::make_unique<State>(workers);
  State& state = *state_;
  state.threads.reserve(workers);
  for (int64_t worker = 0; worker < workers; ++worker) {
    state.threads.emplace_back([&state, worker, &init] { loop(state, worker, init); });
  }
  // `init` belongs to the caller: no worker may need it after the constructor returned.
  std::unique_lock<std::mutex> lock(state.mutex);
  state.finish.wait(lock, [&] { return state.unfinished == 0; });
}

WorkerPool::~WorkerPool() {
  if (!state_) return;
  if (fork_guard_.stale()) {
    (void)state_.release();  // the threads are the parent's
    return;
  }
  state_->stop = true;
  wake_all(*state_);
  for (std::thread& thread : state_->threads) thread.join();
}

void WorkerPool::run(const Body& body) {
  if (!state_) {
    if (workers_ == 1) body(0);
    return;
  }
  if (fork_guard_.stale()) {
    throw std::logic_error(
        "this pipeline was made before fork(), and its worker threads exist in the parent process "
        "only; make a new pipeline in the child process");
  }
  state_->body = &body;
  state_->unfinished = workers_;
  ++state_->round;
  wake_all(*state_);
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->finish.wait(lock, [&] { return state_->unfinished == 0; });
  state_->body = nullptr;
}

void WorkerPool::wake_all(State& state) {
  for (State::Seat& seat : state.seats) {
    // Taking the mutex closes the window between the sleeper's last look and its wait.
    { std::lock_guard<std::mutex> lock(seat.mutex); }
    seat.changed.notify_one();
  }
}

void WorkerPool::loop(State& state, int64_t worker, const Body& init) {
  if (init) init(worker);
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
    (*state.body)(worker);
  }
}

}  // namespace gpipe::internal
