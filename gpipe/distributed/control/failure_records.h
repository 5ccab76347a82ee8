// FailureRecords: what one rank knows of failures, and how all ranks come to throw the same
// failure.
//
// It has no sockets, no threads and no clock, so that a test can play all ranks in any order.
// control.h carries the messages, and knows which ranks are needed and can be reached.
#ifndef GPIPE_DISTRIBUTED_CONTROL_FAILURE_RECORDS_H_
#define GPIPE_DISTRIBUTED_CONTROL_FAILURE_RECORDS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/control/fault_collector.h"

namespace gpipe::distributed {

// The outcome of one epoch. A thread that waits for the record keeps a pointer to its round,
// because the next epoch has a round of its own.
struct FailureRound {
  uint32_t epoch = 0;
  bool has_failed = false;    // the record may still be undecided
  std::vector<Fault> record;  // the faults that all ranks throw, once they are decided

  bool is_decided() const { return !record.empty(); }
};

// Not thread-safe.
//
// An epoch ends with a record. If the record names exceptions only, all ranks may go on, and the
// next epoch begins when all are ready. If it names a loss, it is the last record. If a rank is
// lost after a record of exceptions, the ranks decide a second time in the same way; the result is
// the last record.
//
// Guarantees, for ranks that stay connected to each other, if messages between them arrive within
// 20 ms, however long any rank may be kept from listening: all ranks have the same last record, and
// all ranks that have begun an epoch have the same record for it. There is one exception: if a rank
// is lost while it decides, and another one is kept from listening at that moment, some ranks may
// get the last record immediately.
class FailureRecords {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Told {
    Fault fault;
    Time when;
  };

  // How long faults are collected: the time that messages take, plus a moment for faults that
  // happen together. The same time passes after each loss: the lost rank may have decided, and
  // other ranks then pass its decision on.
  static constexpr std::chrono::milliseconds kWindow{40};
  // The ranks take turns to decide, the lowest first; three of them need less than a second. In the
  // second half of its turn a rank no longer decides, so that the next rank does not decide while
  // the record of the previous one is still in transit.
  static constexpr std::chrono::milliseconds kTurn{200};
  // The longest time between two calls of listen(), unless the rank is kept from running.
  static constexpr std::chrono::milliseconds kListen{50};

  FailureRecords(int64_t rank, int64_t size);

  uint32_t epoch() const { return round_->epoch; }
  std::shared_ptr<const FailureRound> round() const { return round_; }
  bool has_failed() const { return round_->has_failed; }
  // Whether there are faults that are not decided yet.
  bool is_open() const { return is_open_; }
  // The record after which there is no next epoch; empty as long as there may be one.
  const std::vector<Fault>& last() const { return last_; }

  // To be called before the messages that have arrived are passed to hear...(). They may have
  // arrived at any time since the previous call. By that time a rank that was kept from listening
  // knows that its turn may be over.
  void listen(Time now);

  // An exception of this rank. After the record of its epoch it is ignored: it follows from that
  // failure, or came too late.
  void report(Fault fault, Time when, Time now);
  // This rank has noticed that another rank can no longer take part. A second call has no effect.
  void lose(Fault loss, Time when, Time now);
  bool is_lost(int64_t rank) const { return lost_[index(rank)].has_value(); }
  // Whether the rank may be lost. Also true if another rank reports it as lost and that is not
  // decided.
  bool may_be_lost(int64_t rank) const;

  // Takes a fault or record of another rank, with that rank's epoch. A loss counts in any epoch.
  void hear(uint32_t epoch, Fault fault, Time when, Time now);
  void hear_record(uint32_t epoch, std::vector<Fault> record, Time now);
  // Another rank says that it is ready to begin an epoch.
  void hear_ready(int64_t rank, uint32_t epoch);
  bool is_ready(int64_t rank, uint32_t epoch) const { return ready_[index(rank)] >= epoch; }

  // When this rank decides next, if no other rank has decided before; it may be in the past. `all`:
  // the number of ranks that are needed and can be reached. `lower`: how many of them come before
  // this one.
  Time time_to_decide(Time now, int64_t lower, int64_t all) const;
  // Requirements: is_open().
  void decide(Time now);
  // This rank can no longer reach any other rank, so it decides alone.
  void end(Fault why);

  // Whether this rank allows the next epoch. Does not check that the other ranks are ready: see
  // is_ready().
  bool may_go_on() const { return round_->is_decided() && !is_open_ && last_.empty(); }
  // Requirements: may_go_on(). The new epoch may have failed already.
  void begin_next_epoch(Time now);

  // Faults, and a record, to send to the other ranks. Each is returned once.
  std::vector<Told> take_untold() { return std::exchange(untold_, {}); }
  std::optional<std::vector<Fault>> take_record() { return std::exchange(untold_record_, {}); }
  // Whether the work of this epoch must be canceled. Returns true once.
  bool take_must_cancel() { return std::exchange(must_cancel_, false); }
  // The undecided faults, to send again to a rank that missed them.
  std::vector<Fault> open_faults() const { return faults_.sorted(); }

 private:
  static std::size_t index(int64_t rank) { return static_cast<std::size_t>(rank); }

  // `came`: the earliest time at which the fault may have arrived.
  void collect(Fault fault, Time when, Time came, Time now, bool tell);
  void fail();
  void adopt(std::vector<Fault> record, Time now);
  void collect_losses(Time now);
  void collect_early(const Fault& fault, Time when, Time now);

  const int64_t rank_;
  std::shared_ptr<FailureRound> round_;
  std::vector<Fault> last_;
  FaultCollector faults_;  // to be decided
  bool is_open_ = false;
  Time opened_{};  // when is_open_ became true
  Time turns_{};   // the time from which the turns are counted
  Time lost_one_{};
  Time listened_{};
  Time listened_before_{};
  std::vector<Told> untold_;
  std::optional<std::vector<Fault>> untold_record_;
  bool must_cancel_ = false;
  std::vector<std::optional<Told>> lost_;  // [rank]
  std::vector<uint32_t> ready_;            // [rank]: the epoch for which it is ready
  // Faults and the record of the next epoch, from ranks that have begun it.
  std::vector<Told> early_;
  std::optional<std::vector<Fault>> early_record_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_FAILURE_RECORDS_H_
