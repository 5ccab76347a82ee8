#include "balance/costs/contention.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "gpipe/timing.h"

namespace gpipe::balance {
namespace {

constexpr size_t kLeastCalls = 3;

double median_time(const std::function<void()>& work, const ContentionOptions& options,
                   const std::function<double()>& now) {
  work();  // not measured: a first call is slower
  std::vector<double> times;
  const double begin = now();
  double last = begin;
  while (times.size() < kLeastCalls || last - begin < options.seconds) {
    const double start = now();
    work();
    last = now();
    times.push_back(last - start);
  }
  return median(std::move(times));
}

// Calls functions over and over, each on a thread of its own, until the object is destroyed.
class Company {
 public:
  explicit Company(const std::vector<std::function<void()>>& functions) {
    for (const std::function<void()>& function : functions) {
      threads_.emplace_back([this, &function] { loop(function); });
    }
    // Wait until each thread has made its first, slower call.
    while (ready_.load() < functions.size()) std::this_thread::yield();
  }
  ~Company() { stop(); }
  Company(const Company&) = delete;
  Company& operator=(const Company&) = delete;

  // Ends the threads and throws what one of them has thrown.
  void finish() {
    stop();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void loop(const std::function<void()>& function) {
    bool first = true;
    try {
      while (!done_.load()) {
        function();
        if (first) ++ready_;
        first = false;
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    if (first) ++ready_;
  }
  void stop() {
    done_.store(true);
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  std::atomic<bool> done_{false};
  std::atomic<size_t> ready_{0};
  std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_ until the threads have ended
  std::vector<std::thread> threads_;
};

}  // namespace

double measure_contention(const std::function<void()>& work,
                          const std::vector<std::function<void()>>& others,
                          const ContentionOptions& options) {
  const std::function<double()> now = options.now ? options.now : steady_seconds;
  const double alone = median_time(work, options, now);
  Company company(others);
  const double beside = median_time(work, options, now);
  company.finish();
  return alone > 0 ? std::max(beside / alone, 1.0) : 1.0;
}

}  // namespace gpipe::balance
