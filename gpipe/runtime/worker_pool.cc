#include "gpipe/runtime/worker_pool.h"

#include <stdexcept>
#include <string>

namespace gpipe::internal {

WorkerPool::WorkerPool(int64_t workers, const Body& init, bool inline_single) : workers_(workers) {
  if (workers < 0) {
    throw std::invalid_argument("WorkerPool: the number of workers must not be negative, got " +
                                std::to_string(workers));
  }
  if (workers == 1 && inline_single) return;
  unfinished_ = workers;
  threads_.reserve(workers);
  for (int64_t worker = 0; worker < workers; ++worker) {
    threads_.emplace_back([this, worker, &init] { loop(worker, init); });
  }
  // `init` belongs to the caller: no worker may need it after the constructor returned.
  std::unique_lock<std::mutex> lock(mutex_);
  finish_.wait(lock, [this] { return unfinished_ == 0; });
}

WorkerPool::~WorkerPool() {
  if (fork_guard_.stale()) {
    // The threads are the parent's. A std::thread must not be destroyed while joinable, and the
    // condition variables may hold waiters that do not exist here: leave all of it alone.
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(const Body& body) {
  if (threads_.empty()) {
    if (workers_ == 1) body(0);
    return;
  }
  if (fork_guard_.stale()) {
    throw std::logic_error(
        "this pipeline was made before fork(), and its worker threads exist in the parent process "
        "only; make a new pipeline in the child process");
  }
  std::unique_lock<std::mutex> lock(mutex_);
  body_ = &body;
  unfinished_ = workers_;
  ++round_;
  start_.notify_all();
  finish_.wait(lock, [this] { return unfinished_ == 0; });
  body_ = nullptr;
}

void WorkerPool::loop(int64_t worker, const Body& init) {
  if (init) init(worker);
  uint64_t done_round = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (--unfinished_ == 0) finish_.notify_one();
    start_.wait(lock, [&] { return stop_ || round_ != done_round; });
    if (stop_) return;
    done_round = round_;
    const Body& body = *body_;
    lock.unlock();
    body(worker);
    lock.lock();
  }
}

}  // namespace gpipe::internal
