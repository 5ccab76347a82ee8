// DetachedCalls: blocking calls that cannot be canceled, each on a thread of its own.
//
// Some calls of c10d and Gloo wait for other processes without a limit and cannot be stopped. With
// DetachedCalls a caller waits for the result only as long as that makes sense.
#ifndef GPIPE_DISTRIBUTED_MEET_DETACHED_CALLS_H_
#define GPIPE_DISTRIBUTED_MEET_DETACHED_CALLS_H_

#include <chrono>
#include <future>
#include <list>
#include <thread>
#include <type_traits>
#include <utility>

namespace gpipe::distributed {

// Requirements: a call owns what it uses, because it may go on after everything else is gone. It
// does not run user code.
//
// Thread-safety: one thread at a time.
//
// Example:
//   DetachedCalls calls;
//   std::future<std::string> value = calls.begin([store] { return store->get("key"); });
//   if (value.wait_for(limit) != std::future_status::ready) throw std::runtime_error("no answer");
class DetachedCalls {
 public:
  DetachedCalls() = default;
  // Waits for the calls that are about to end, and detaches the threads of the others: these only
  // wait for other processes, so they may still run when this process ends.
  ~DetachedCalls();
  DetachedCalls(const DetachedCalls&) = delete;
  DetachedCalls& operator=(const DetachedCalls&) = delete;

  // The future neither waits in its destructor nor needs this object.
  template <typename Call>
  std::future<std::invoke_result_t<Call&>> begin(Call call) {
    std::packaged_task<std::invoke_result_t<Call&>()> task(std::move(call));
    auto result = task.get_future();
    std::promise<void> done;
    std::future<void> is_done = done.get_future();
    forget_done();
    threads_.push_back({std::thread([task = std::move(task), done = std::move(done)]() mutable {
                          task();
                          task = {};  // destroys what the call owns before `done` is set
                          done.set_value();
                        }),
                        std::move(is_done)});
    return result;
  }

 private:
  struct DetachedCall {
    std::thread thread;
    std::future<void> done;
  };

  void forget_done();

  std::list<DetachedCall> threads_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_DETACHED_CALLS_H_
