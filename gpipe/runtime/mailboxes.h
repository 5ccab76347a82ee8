// Mailboxes: the transport within one process, with one mailbox per worker.
//
// A slot is filled once and emptied once per run. The compiled program numbers the slots
// (gpipe/schedule/program.h). Sending is a move. A worker whose value has already arrived makes no
// system call.
#ifndef GPIPE_RUNTIME_MAILBOXES_H_
#define GPIPE_RUNTIME_MAILBOXES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/transport.h"

namespace gpipe::internal {

// Guarantees: what a thread did before put() is visible to the thread whose take() got the value.
//
// Thread-safety: put() and cancel() may be called from any thread, take(worker, ...) by one thread
// per worker.
//
// Example:
//   Mailboxes<std::string> mailboxes({1, 1});  // two workers, one slot each
//   mailboxes.put(1, 0, "hello");             // on worker 0
//   std::string text;
//   if (mailboxes.take(1, 0, &text)) use(text);  // on worker 1
template <typename Payload>
class Mailboxes final : public Transport<Payload> {
 public:
  explicit Mailboxes(const std::vector<int32_t>& slots_per_worker) {
    boxes_.reserve(slots_per_worker.size());
    for (int32_t slots : slots_per_worker) boxes_.push_back(std::make_unique<Box>(slots));
  }

  void send(const std::vector<Step::Send>& sends, std::vector<Payload>& payloads) override {
    for (size_t k = 0; k < sends.size(); ++k) {
      put(sends[k].worker, sends[k].slot, std::move(payloads[k]));
    }
  }

  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<Payload>& payloads) override {
    if (cancelled()) return false;
    for (size_t k = 0; k < slots.size(); ++k) {
      if (!take(worker, slots[k], &payloads[k])) return false;
    }
    return true;
  }

  void put(int32_t worker, int32_t slot, Payload payload) {
    Box& box = *boxes_[worker];
    box.slots[slot].payload = std::move(payload);
    // The two operations are sequentially consistent. So either this thread sees the sleeper, or
    // the sleeper, which set `sleeping` first, sees the filled slot.
    box.slots[slot].full.store(true);
    if (box.sleeping.load()) wake(box);
  }

  // Waits until the slot is filled and moves its payload into *payload. Returns false if the run
  // was canceled.
  bool take(int32_t worker, int32_t slot, Payload* payload) {
    Box& box = *boxes_[worker];
    Slot& source = box.slots[slot];
    if (cancelled_.load(std::memory_order_relaxed)) return false;
    // A value that arrives in a moment is not worth a sleep and a wake-up. Spinning does not call
    // yield(): on a machine that is shared with others, each call costs one of their time slices.
    for (int i = 0; i < kSpins && !source.full.load(std::memory_order_acquire); ++i) pause();
    if (!source.full.load(std::memory_order_acquire)) {
      const WaitScope wait;
      std::unique_lock<std::mutex> lock(box.mutex);
      box.sleeping.store(true);
      box.filled.wait(lock, [&] { return source.full.load() || cancelled_.load(); });
      box.sleeping.store(false);
      if (!source.full.load()) return false;
    }
    *payload = std::move(source.payload);
    source.payload = Payload();
    return true;
  }

  void cancel() noexcept override {
    cancelled_.store(true);
    for (auto& box : boxes_) wake(*box);
  }

  bool cancelled() const { return cancelled_.load(); }

 private:
  // So many spins take some ten microseconds, about as long as sleeping and waking up.
  static constexpr int kSpins = 400;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  struct Slot {
    std::atomic<bool> full{false};
    Payload payload{};
  };
  struct Box {
    explicit Box(int32_t count) : slots(count) {}
    std::vector<Slot> slots;
    std::atomic<bool> sleeping{false};
    std::mutex mutex;
    std::condition_variable filled;
  };

  static void wake(Box& box) {
    // The mutex is taken so that the sleeper is not between its last check and its wait: it would
    // miss the notification.
    { std::lock_guard<std::mutex> lock(box.mutex); }
    box.filled.notify_one();
  }

  std::vector<std::unique_ptr<Box>> boxes_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_MAILBOXES_H_
