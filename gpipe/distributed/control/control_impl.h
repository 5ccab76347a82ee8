// Control::Impl: what a Control knows of the other ranks, and its thread. Only the units of Control
// include this: control.cc has what callers do, control_thread.cc what the thread does.
#ifndef GPIPE_DISTRIBUTED_CONTROL_CONTROL_IMPL_H_
#define GPIPE_DISTRIBUTED_CONTROL_CONTROL_IMPL_H_

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/control/collectives.h"
#include "gpipe/distributed/control/control.h"
#include "gpipe/distributed/control/control_messages.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/control/failure_records.h"
#include "gpipe/distributed/control/mesh.h"
#include "gpipe/distributed/control/watchers.h"
#include "gpipe/distributed/sockets/sockets.h"
#include "gpipe/runtime/mutex.h"

namespace gpipe::distributed {

class Control::Impl {
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Milliseconds = std::chrono::milliseconds;

  // This rank's knowledge of another rank, beside the connection.
  struct Peer {
    Time last_heard{};
    std::optional<Bye> bye;
    uint32_t bye_epoch = 0;  // the epoch in which it left; bye->agrees counts in that epoch
    bool bye_heard = false;
  };

 public:
  explicit Impl(ControlOptions options);
  ~Impl();
  const ControlOptions& options() const { return options_; }
  // Whether this object is the copy of the parent's object in a forked child.
  bool is_a_copy() const { return getpid() != process_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  void add_peer(int64_t rank, const Endpoint& endpoint);
  void wait_until_connected(Time deadline);
  std::string host_of(int64_t rank) const;
  void check();

  // `reported_epoch`: the epoch that the fault belongs to; std::nullopt for the current epoch.
  void report(Fault fault, std::optional<int64_t> reported_epoch);

  // `epoch`: the epoch that the symptom belongs to; std::nullopt for the current epoch.
  [[noreturn]] void throw_failure(const std::string& symptom, std::optional<int64_t> epoch);
  void agree(const std::string& name, const std::string& value);
  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    bool is_patient);
  int64_t epoch() const;
  void next_epoch();
  void count_call();
  void check_not_given_up();
  Watchers& watchers() { return watchers_; }

  void begin_call();
  void end_call(bool done);

 private:
  // Makes a call of agree() or exchange(): fills in the number of `words`, and waits for the
  // verdict. Returns the collected values.
  std::vector<std::string> call_collective(Agreement::Words words);

  static std::string seconds(Milliseconds time);

  // --- The thread's functions (control_thread.cc). They are called without mutex_.

  void run();
  bool turn();
  void cancel_if_asked();
  void wake();

  // --- What follows needs mutex_.

  std::vector<pollfd> descriptors() const GPIPE_REQUIRES(mutex_);
  int milliseconds_to_wait() const GPIPE_REQUIRES(mutex_);

  const Peer& peer_of(int64_t rank) const GPIPE_REQUIRES(mutex_) {
    return peers_[static_cast<std::size_t>(rank)];
  }
  Peer& peer_of(int64_t rank) GPIPE_REQUIRES(mutex_) {
    return peers_[static_cast<std::size_t>(rank)];
  }

  // If this thread did not listen for a while (the process was stopped, the machine overloaded),
  // that time does not count as other ranks' silence.
  void excuse_silence(Time now) GPIPE_REQUIRES(mutex_);
  void take(const MeshEvent& event, Time now) GPIPE_REQUIRES(mutex_);

  // Writes the queued frames at once, and does not leave that to the thread: rank 0 may go on, and
  // end, as soon as it has decided, and the other ranks must have its verdict then. The thread is
  // woken only if some frames could not be written, or if this epoch has failed.
  void send_queued() GPIPE_REQUIRES(mutex_);

  // Sends a rank that has just connected what the others were told before.
  void catch_up(int64_t rank) GPIPE_REQUIRES(mutex_);

  // Notes that a rank can no longer take part. If that rank has said that it leaves, nothing is
  // noted, because the ranks that need it know already.
  void lose(int64_t rank, FaultKind kind, const std::string& text, Time now) GPIPE_REQUIRES(mutex_);
  bool is_needed(int64_t rank) const GPIPE_REQUIRES(mutex_) {
    return !peer_of(rank).bye && !records_.is_lost(rank);
  }

  // Whether this rank may decide. A rank that leaves does not: the others know that it leaves and
  // give it no turn.
  bool may_decide() const GPIPE_REQUIRES(mutex_) { return records_.is_open() && !is_leaving_; }

  // When it is this rank's turn to decide. A rank that cannot be reached gets no turn.
  Time time_to_decide() const GPIPE_REQUIRES(mutex_);
  void decide() GPIPE_REQUIRES(mutex_);

  // Must be called when the records may have changed.
  void records_changed() GPIPE_REQUIRES(mutex_);
  void tell_faults(Time now) GPIPE_REQUIRES(mutex_);
  void beat(Time now) GPIPE_REQUIRES(mutex_);
  void look_for_silence(Time now) GPIPE_REQUIRES(mutex_);
  void take(int64_t rank, const Frame& frame, Time now) GPIPE_REQUIRES(mutex_);
  void take_valid(int64_t rank, const Frame& frame, Time now) GPIPE_REQUIRES(mutex_);

  // Notes each rank that left before `what` as failed.
  template <typename LeftBefore>
  void expect_present(const std::string& what, LeftBefore left_before) GPIPE_REQUIRES(mutex_) {
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      const Peer& peer = peer_of(rank);
      if (!peer.bye || peer.bye_epoch > records_.epoch()) continue;
      if (peer.bye_epoch < records_.epoch() || left_before(*peer.bye)) note_left(rank, what);
    }
  }

  void note_left(int64_t rank, const std::string& what) GPIPE_REQUIRES(mutex_);
  void hear(int64_t rank, uint32_t epoch, Agree agree) GPIPE_REQUIRES(mutex_);
  void give_up_collectives(Time now) GPIPE_REQUIRES(mutex_);

  // Tells all ranks a decision. Sends nothing once the epoch has a record, because a rank that has
  // thrown the record may be in another call by now.
  void announce(Collectives::Decision decision) GPIPE_REQUIRES(mutex_);
  void throw_if_given_up() const GPIPE_REQUIRES(mutex_);
  bool is_given_up(uint64_t call) const GPIPE_REQUIRES(mutex_) {
    return call <= calls_given_up_ && call > 0;
  }
  void give_up(uint64_t call, std::string text) GPIPE_REQUIRES(mutex_);
  std::vector<int64_t> unready(uint32_t target) const GPIPE_REQUIRES(mutex_);
  void begin_next_epoch() GPIPE_REQUIRES(mutex_);

  // Waits until `round` has a record. `round` stays the same if another thread begins the next
  // epoch meanwhile.
  void wait_for_record(const FailureRound& round) GPIPE_REQUIRES(mutex_);
  // Both functions unlock the mutex while they wait or report.
  [[noreturn]] void throw_with_lock(const std::string& symptom) GPIPE_REQUIRES(mutex_);
  [[noreturn]] void throw_with_lock(const std::shared_ptr<const FailureRound>& round)
      GPIPE_REQUIRES(mutex_);

  ControlOptions options_;
  const Milliseconds beat_;
  const pid_t process_ = getpid();

  mutable internal::Mutex mutex_;
  internal::Condition changed_;
  Mesh mesh_ GPIPE_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ GPIPE_GUARDED_BY(mutex_);
  Socket wake_;
  bool is_leaving_ GPIPE_GUARDED_BY(mutex_) = false;
  bool stop_ GPIPE_GUARDED_BY(mutex_) = false;
  Time last_turn_ GPIPE_GUARDED_BY(mutex_){};
  Time next_beat_ GPIPE_GUARDED_BY(mutex_){};

  FailureRecords records_ GPIPE_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};  // whether this epoch has failed

  // The number of calls that have begun, in all epochs together.
  uint64_t calls_begun_ GPIPE_GUARDED_BY(mutex_) = 0;
  // The calls up to this number are given up: no rank makes them any more.
  uint64_t calls_given_up_ GPIPE_GUARDED_BY(mutex_) = 0;
  std::string given_up_text_ GPIPE_GUARDED_BY(mutex_);
  // Rank 0's records of all epochs before this one have arrived.
  uint32_t heard_of_rank_0_ GPIPE_GUARDED_BY(mutex_) = 0;
  uint64_t calls_done_ GPIPE_GUARDED_BY(mutex_) = 0;  // in this epoch
  bool is_in_call_ GPIPE_GUARDED_BY(mutex_) = false;
  uint32_t call_epoch_ GPIPE_GUARDED_BY(mutex_) = 0;  // the epoch in which the last call began
  Collectives collectives_ GPIPE_GUARDED_BY(mutex_);
  // Describes the last agreement or exchange, for messages.
  std::string collective_ GPIPE_GUARDED_BY(mutex_);

  Watchers watchers_;  // its functions never need mutex_

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_CONTROL_IMPL_H_
