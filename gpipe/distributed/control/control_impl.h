// Control::Impl: what a Control knows of the other ranks, and its thread. Only the units of Control
// include this: control.cc has what callers do, control_thread.cc what the thread does.
#ifndef GPIPE_DISTRIBUTED_CONTROL_CONTROL_IMPL_H_
#define GPIPE_DISTRIBUTED_CONTROL_CONTROL_IMPL_H_

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
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
  // Whether this object is the copy in a forked child.
  bool is_a_copy() const { return getpid() != process_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  void add_peer(int64_t rank, const Endpoint& endpoint);
  void wait_until_connected(Time deadline);
  std::string host_of(int64_t rank) const;
  void check();

  // Without `reported_epoch`: a fault of the current epoch.
  void report(Fault fault, std::optional<int64_t> reported_epoch);

  // Without `epoch`: a symptom of the current epoch.
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
  // A call of agree() or exchange(), whose number is filled in. Returns what was collected.
  std::vector<std::string> call_collective(Agree words);

  static std::string seconds(Milliseconds time);

  // --- The thread's functions (control_thread.cc). They are called without mutex_.

  void run();
  bool turn();
  void wake();
  std::vector<pollfd> descriptors() const;
  int milliseconds_to_wait() const;

  // --- What follows needs mutex_.

  const Peer& peer_of(int64_t rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  Peer& peer_of(int64_t rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // If this thread did not listen for a while (the process was stopped, the machine overloaded),
  // that time does not count as other ranks' silence.
  void excuse_silence(Time now);
  void take(const MeshEvent& event, Time now);

  // Writes what is queued immediately: rank 0 may go on, and end, as soon as it has decided, and
  // the others must have its verdict then. This also saves waking the thread, unless more is left.
  void send_queued();

  // Sends a rank that has just connected what the others were told before.
  void catch_up(int64_t rank);

  // A rank can no longer take part. If it has said that it leaves, the ranks that need it know.
  void lose(int64_t rank, FaultKind kind, const std::string& text, Time now);
  bool is_needed(int64_t rank) const { return !peer_of(rank).bye && !records_.is_lost(rank); }

  // A rank that leaves does not decide: the others know that it leaves and give it no turn.
  bool may_decide() const { return records_.is_open() && !is_leaving_; }

  // A rank that cannot be reached gets no turn.
  Time time_to_decide() const;
  void decide();

  // To be called when the records may have changed.
  void records_changed();
  void tell_faults(Time now);
  void beat(Time now);
  void look_for_silence(Time now);
  void take(int64_t rank, const Frame& frame, Time now);
  void take_valid(int64_t rank, const Frame& frame, Time now);

  // Ranks that have left before `what` have failed.
  template <typename LeftBefore>
  void expect_present(const std::string& what, LeftBefore left_before) {
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      const Peer& peer = peer_of(rank);
      if (!peer.bye || peer.bye_epoch > records_.epoch()) continue;
      if (peer.bye_epoch < records_.epoch() || left_before(*peer.bye)) note_left(rank, what);
    }
  }

  void note_left(int64_t rank, const std::string& what);
  void hear(int64_t rank, uint32_t epoch, Agree words);
  void give_up_collectives(Time now);

  // Sends nothing after the record: a rank that has thrown it may be in another call by now.
  void announce(Collectives::Decision decision);
  void throw_if_given_up() const;
  bool is_given_up(uint64_t call) const { return call <= calls_given_up_ && call > 0; }
  void give_up(uint64_t call, std::string text);
  std::vector<int64_t> unready(uint32_t target) const;
  void begin_next_epoch();

  // `round` stays the same if another thread begins the next epoch meanwhile.
  void wait_for_record(std::unique_lock<std::mutex>& lock, const FailureRound& round);
  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock, const std::string& symptom);
  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock,
                                  const std::shared_ptr<const FailureRound>& round);
  void cancel_if_asked();
  ControlOptions options_;
  const Milliseconds beat_;
  const pid_t process_ = getpid();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Mesh mesh_;
  std::vector<Peer> peers_;
  Socket wake_;
  bool is_leaving_ = false;
  bool stop_ = false;
  Time last_turn_{};
  Time next_beat_{};

  FailureRecords records_;
  std::atomic<bool> failed_{false};  // whether this epoch has failed

  uint64_t calls_begun_ = 0;     // in all epochs
  uint64_t calls_given_up_ = 0;  // calls up to this number are no longer made
  std::string given_up_text_;
  uint32_t heard_of_rank_0_ = 0;  // rank 0's records of all epochs before this one have arrived
  uint64_t calls_done_ = 0;       // in this epoch
  bool is_in_call_ = false;
  uint32_t call_epoch_ = 0;  // the epoch in which the last call began
  Collectives collectives_;
  std::string collective_;  // describes the last of them, for messages

  Watchers watchers_;  // its functions never need mutex_

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_CONTROL_IMPL_H_
