// RunningCode: which layer of a stage runs right now, for a thread that waits for its run.
//
// A thread that a layer has started, and waits for, may call the pipeline. That call waits for the
// run, and the run for the layer. That thread cannot be told from any other thread of the user,
// which may wait. So a call that waits for long says which code has not returned all the while.
#ifndef GPIPE_RUNTIME_RUNNING_CODE_H_
#define GPIPE_RUNTIME_RUNNING_CODE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::internal {

// A RunningCode knows what one stage runs.
//
// Thread-safety: one thread at a time works on a stage. all_now() and unfinished() are thread-safe.
class RunningCode {
  struct State {
    // Odd while an action runs. Each action and each layer changes it.
    std::atomic<uint64_t> changes{0};
    std::atomic<size_t> position{0};
    std::vector<std::string> names;
  };

 public:
  // `names`: the name of the stage, then of its layers, then of what may follow the layers.
  explicit RunningCode(std::vector<std::string> names);

  // An action of the stage runs while the scope lives.
  class Action {
   public:
    explicit Action(RunningCode& code) : state_(*code.state_) { change(state_, 1, 0); }
    ~Action() { change(state_, 1, 0); }
    Action(const Action&) = delete;
    Action& operator=(const Action&) = delete;

   private:
    State& state_;
  };
  // The layer at that position runs from now on.
  void enter(size_t position) { change(*state_, 2, position + 1); }

  using Moment = std::vector<std::pair<std::shared_ptr<const State>, uint64_t>>;
  // Returns what runs in the process at this moment.
  static Moment all_now();
  // Returns the name of something that ran at that moment and has not returned since. Empty if
  // there is nothing of that kind.
  static std::string unfinished(const Moment& moment);

 private:
  static void change(State& state, uint64_t count, size_t position) {
    state.position.store(position, std::memory_order_relaxed);
    state.changes.fetch_add(count, std::memory_order_relaxed);
  }

  std::shared_ptr<State> state_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_RUNNING_CODE_H_
