// Gate: keeps a stream busy for as long as a test wants, however slow or stalled the machine is.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_GATE_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_GATE_H_

#include <future>

#include "gpipe/testing/fake_accelerator/runtime.h"

namespace gpipe::testing::fake {

// A gate opens at the latest when it is destroyed. Until then, code that waits for it, such as
// drain(), hangs.
//
// Example:
//   Gate gate;
//   runtime().launch(stream, gate.task());
//   EXPECT_FALSE(runtime().is_idle(stream));
//   gate.open();
class Gate {
 public:
  Gate() = default;
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // A kernel that is over once the gate is open. The kernel may be launched on several streams.
  Task task() const {
    return {"gate", Task::Kind::kKernel, {}, [opened = opened_] { opened.wait(); }, {}};
  }
  void open() {
    if (!is_open_) open_.set_value();
    is_open_ = true;
  }

 private:
  bool is_open_ = false;
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_GATE_H_
