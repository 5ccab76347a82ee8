#include "gpipe/runtime/exit_gate.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

namespace gpipe::internal {
namespace {

// This is long enough for a layer's work, and short enough for a user who waits for a layer that
// hangs.
constexpr std::chrono::seconds kPatience{30};

// These variables are constant-initialized and trivially destructible, so they exist as long as any
// thread does.
std::atomic<int64_t> at_work{0};  // threads in a WorkScope and not in a WaitScope
std::atomic<bool> shut{false};
std::atomic<bool (*)()> preparation{nullptr};
thread_local int64_t depth = 0;  // how many WorkScopes this thread is in
thread_local bool for_exit_thread = false;

[[noreturn]] void stay() {
  for (;;) pause();
}

void enter() {
  // The two operations are sequentially consistent with those of shut_exit_gate(). So either that
  // function counts this thread, or this thread sees that the gate is shut.
  at_work.fetch_add(1);
  if (!shut.load() || for_exit_thread) return;
  at_work.fetch_sub(1);
  stay();
}

void leave() { at_work.fetch_sub(1); }

// In a forked child the parent's other threads do not exist, so they do not count as at work.
void forget_other_threads() {
  at_work = depth > 0 ? 1 : 0;
  shut = false;
}

// The handler is registered before any scope is opened. If it were registered later, an earlier
// scope could stay open in a forked child.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, forget_other_threads);

}  // namespace

void shut_at_exit(bool in_any_case) {
  static std::atomic<uint64_t> calls{0};
  const uint64_t call = calls.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!in_any_case && call > 16 && (call & (call - 1)) != 0) return;
  std::atexit([] { (void)shut_exit_gate(kPatience); });
}

bool exiting() { return shut.load(); }

bool on_exiting_thread() { return for_exit_thread; }

void set_exit_preparation(bool (*prepare)()) { preparation = prepare; }

bool shut_exit_gate(std::chrono::milliseconds patience) {
  for_exit_thread = true;
  if (shut.exchange(true)) return true;  // an earlier call has already waited
  bool (*const prepare)() = preparation.load();
  const bool is_waited_for = depth == 0 && prepare != nullptr && prepare();
  const int64_t own = depth > 0 || is_waited_for ? 1 : 0;
  const auto end = std::chrono::steady_clock::now() + patience;
  // The loop uses no condition variable, because every worker would have to notify it in every
  // step, only for this one wait.
  while (at_work.load() > own) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

WorkScope::WorkScope(bool for_exit) : set_for_exit_(for_exit && !for_exit_thread) {
  if (set_for_exit_) for_exit_thread = true;
  if (depth == 0) enter();
  ++depth;
}

WorkScope::~WorkScope() {
  --depth;
  if (depth == 0) leave();
  if (set_for_exit_) for_exit_thread = false;
}

WaitScope::WaitScope() {
  if (depth > 0) leave();
}

WaitScope::~WaitScope() {
  if (depth > 0) enter();
}

void stay_if_exiting() {
  if (depth == 0 || for_exit_thread || !shut.load(std::memory_order_relaxed)) return;
  leave();
  stay();
}

}  // namespace gpipe::internal
