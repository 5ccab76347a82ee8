// FailureRecords: what one rank knows of failures, and how all ranks come to throw the same.
//
// It has no sockets, no threads and no clock, so that a test can play all ranks in any order. How
// its words travel, and who is needed and can be reached, is control.h.
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

// What becomes of one epoch. Who waits for it keeps it, for the next epoch has one of its own.
struct FailureRound {
  uint32_t epoch = 0;
  bool has_failed = false;    // what is thrown may not be decided yet
  std::vector<Fault> record;  // what all ranks throw, once it is decided

  bool is_decided() const { return !record.empty(); }
};

// Not thread-safe.
//
// An epoch ends with a record. If it names exceptions only, all ranks may go on, and the next epoch
// begins when all are ready. If it names a loss, it is the last one. A rank that is lost behind a
// record of exceptions leads to a second decision, as the first one was made, and so to a record
// that is the last one.
//
// Guarantees, for ranks that stay connected to each other, if what one tells the others is there
// within 20 ms, however long any of them may be kept from listening: all have the same last record;
// and for each epoch all that have begun it have the same one. Only where a rank is lost while it
// decides, and another one is kept from listening in that moment, some may have the last one at
// once.
class FailureRecords {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Told {
    Fault fault;
    Time when;
  };

  // How long faults are collected: those of the same moment, and their way here. So long also after
  // each loss: that rank may have decided, and what it could say of that is passed on.
  static constexpr std::chrono::milliseconds kWindow{40};
  // The ranks take turns to decide, the lowest first; three of them need less than a second. In the
  // second half of its turn a rank does not decide any more: the next one shall not decide while
  // the record is on its way.
  static constexpr std::chrono::milliseconds kTurn{200};
  // A rank listens so often at least, if it can.
  static constexpr std::chrono::milliseconds kListen{50};

  FailureRecords(int64_t rank, int64_t size);

  uint32_t epoch() const { return round_->epoch; }
  std::shared_ptr<const FailureRound> round() const { return round_; }
  bool has_failed() const { return round_->has_failed; }
  // Something is to be decided.
  bool is_open() const { return is_open_; }
  // The record after which there is no next epoch; empty as long as there may be one.
  const std::vector<Fault>& last() const { return last_; }

  // To be called before what has come is heard. It may have come at any time since the call before:
  // a rank that was kept from listening knows by that that its turn may be over.
  void listen(Time now);

  // An exception of this rank. After the record of its epoch it follows from that, or came too
  // late.
  void report(Fault fault, Time when, Time now);
  // Another rank can take part in nothing any more: it is noticed here. Again: nothing happens.
  void lose(Fault loss, Time when, Time now);
  bool is_lost(int64_t rank) const { return lost_[index(rank)].has_value(); }
  // Also those that others take for lost, as long as that is not decided.
  bool may_be_lost(int64_t rank) const;

  // What another rank has told, in its epoch. A loss counts in any epoch.
  void hear(uint32_t epoch, Fault fault, Time when, Time now);
  void hear_record(uint32_t epoch, std::vector<Fault> record, Time now);
  // Another rank is ready to begin an epoch.
  void hear_ready(int64_t rank, uint32_t epoch);
  bool is_ready(int64_t rank, uint32_t epoch) const { return ready_[index(rank)] >= epoch; }

  // When this rank decides next, if nobody else has before; it may be past. `lower` ranks, of `all`
  // that are needed and can be reached, come before it.
  Time time_to_decide(Time now, int64_t lower, int64_t all) const;
  // Requirements: is_open().
  void decide(Time now);
  // This rank can reach nobody any more.
  void end(Fault why);

  // Whether the next epoch may begin, if all other ranks are ready.
  bool may_go_on() const { return round_->is_decided() && !is_open_ && last_.empty(); }
  // Requirements: may_go_on(). The new epoch may have failed already.
  void begin_next_epoch(Time now);

  // What the others are to be told, each once.
  std::vector<Told> take_untold() { return std::exchange(untold_, {}); }
  std::optional<std::vector<Fault>> take_record() { return std::exchange(untold_record_, {}); }
  // Whether the work of this epoch is to be cancelled; once.
  bool take_must_cancel() { return std::exchange(must_cancel_, false); }
  // What is to be decided, for who has missed it.
  std::vector<Fault> open_faults() const { return faults_.sorted(); }

 private:
  static std::size_t index(int64_t rank) { return static_cast<std::size_t>(rank); }

  // `came`: when it may have come, at the earliest.
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
  Time opened_{};  // is_open_
  Time turns_{};   // since when the turns count
  Time lost_one_{};
  Time listened_{};
  Time listened_before_{};
  std::vector<Told> untold_;
  std::optional<std::vector<Fault>> untold_record_;
  bool must_cancel_ = false;
  std::vector<std::optional<Told>> lost_;  // [rank]
  std::vector<uint32_t> ready_;            // [rank]: for this epoch
  // Of the next epoch, from those that have begun it.
  std::vector<Told> early_;
  std::optional<std::vector<Fault>> early_record_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_FAILURE_RECORDS_H_
