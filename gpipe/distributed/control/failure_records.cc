#include "gpipe/distributed/control/failure_records.h"

#include <algorithm>

namespace gpipe::distributed {
namespace {

bool is_loss(const Fault& fault) { return fault.kind != FaultKind::kException; }

bool names_a_loss(const std::vector<Fault>& record) {
  return std::any_of(record.begin(), record.end(), is_loss);
}

}  // namespace

FailureRecords::FailureRecords(int64_t rank, int64_t size)
    : rank_(rank),
      round_(std::make_shared<FailureRound>()),
      lost_(index(size)),
      ready_(index(size), 0) {}

void FailureRecords::listen(Time now) { listened_before_ = std::exchange(listened_, now); }

void FailureRecords::report(Fault fault, Time when, Time now) {
  if (round_->is_decided()) return;
  collect(std::move(fault), when, now, now, /*tell=*/true);
}

void FailureRecords::lose(Fault loss, Time when, Time now) {
  if (is_lost(loss.rank)) return;
  lost_[index(loss.rank)] = Told{loss, when};
  lost_one_ = now;
  if (round_->is_decided()) return collect_losses(now);
  collect(std::move(loss), when, listened_before_, now, /*tell=*/true);
}

bool FailureRecords::may_be_lost(int64_t rank) const {
  return is_lost(rank) || faults_.has_loss_of(rank);
}

void FailureRecords::hear(uint32_t epoch, Fault fault, Time when, Time now) {
  if (is_loss(fault)) {
    if (!may_be_lost(fault.rank)) lost_one_ = now;
    collect(std::move(fault), when, listened_before_, now, /*tell=*/false);
    if (round_->is_decided()) collect_losses(now);
  } else if (epoch == round_->epoch) {
    if (!round_->is_decided())
      collect(std::move(fault), when, listened_before_, now, /*tell=*/false);
  } else if (epoch == round_->epoch + 1 && round_->is_decided()) {
    // The fault is of the next epoch: its rank knows that all are ready, and has already failed
    // there.
    if (is_open_) return collect_early(fault, when, now);
    early_.push_back({std::move(fault), when});
  }
}

void FailureRecords::hear_record(uint32_t epoch, std::vector<Fault> record, Time now) {
  if (!last_.empty()) return;
  const bool is_this = epoch == round_->epoch && !round_->is_decided();
  if (names_a_loss(record) || is_this) {
    adopt(std::move(record), now);
  } else if (epoch == round_->epoch + 1 && round_->is_decided() && !is_open_ && !early_record_) {
    early_record_ = std::move(record);
  }
}

void FailureRecords::hear_ready(int64_t rank, uint32_t epoch) {
  ready_[index(rank)] = std::max(ready_[index(rank)], epoch);
}

FailureRecords::Time FailureRecords::time_to_decide(Time now, int64_t lower, int64_t all) const {
  const Time earliest = std::max(opened_, lost_one_) + kWindow;
  if (all <= 1) return earliest;
  const Time first = turns_ + kWindow + lower * kTurn;
  const Time end = first + kTurn / 2;
  const Time from = std::max(now, earliest);
  if (from < end) return std::max(first, earliest);
  const auto round = all * kTurn;
  return first + ((from - end) / round + 1) * round;
}

void FailureRecords::decide(Time now) { adopt(faults_.sorted(), now); }

void FailureRecords::end(Fault why) {
  fail();
  if (!round_->is_decided()) round_->record = {why};
  if (last_.empty()) last_ = {std::move(why)};
  is_open_ = false;
}

void FailureRecords::begin_next_epoch(Time now) {
  round_ = std::make_shared<FailureRound>(FailureRound{round_->epoch + 1, false, {}});
  must_cancel_ = false;
  for (Told& told : std::exchange(early_, {})) {
    collect(std::move(told.fault), told.when, listened_before_, now, /*tell=*/false);
  }
  if (auto record = std::exchange(early_record_, {})) adopt(std::move(*record), now);
  // Ranks that were ready for this epoch and have been lost since belong in its record, too.
  for (const auto& lost : lost_) {
    if (!lost) continue;
    if (round_->is_decided()) return collect_losses(now);
    collect(lost->fault, lost->when, listened_before_, now, /*tell=*/true);
  }
}

void FailureRecords::collect(Fault fault, Time when, Time came, Time now, bool tell) {
  if (!last_.empty() || !faults_.add(fault, when)) return;
  if (!std::exchange(is_open_, true)) {
    opened_ = now;
    turns_ = came;
  }
  fail();
  if (tell) untold_.push_back({std::move(fault), when});
}

void FailureRecords::fail() {
  if (!std::exchange(round_->has_failed, true)) must_cancel_ = true;
}

void FailureRecords::adopt(std::vector<Fault> record, Time now) {
  fail();
  // A collected loss that the record does not name is kept, because it may have come a moment later
  // than the decision.
  std::vector<FaultCollector::Entry> left = faults_.take();
  is_open_ = false;
  untold_.clear();
  if (!round_->is_decided()) round_->record = record;
  untold_record_ = record;
  if (names_a_loss(record)) {
    for (const Fault& fault : record) {
      if (is_loss(fault) && fault.rank != rank_ && !is_lost(fault.rank)) {
        lost_[index(fault.rank)] = Told{fault, now};
      }
    }
    last_ = std::move(record);
    return;
  }
  for (FaultCollector::Entry& entry : left) {
    if (is_loss(entry.fault))
      collect(std::move(entry.fault), entry.when, listened_before_, now, /*tell=*/true);
  }
  collect_losses(now);
}

// Called after a record. A rank that was ready may have been lost in the next epoch. If other ranks
// have begun that epoch, this rank is about to, and the loss then belongs to it.
void FailureRecords::collect_losses(Time now) {
  const bool others_have_begun = !early_.empty() || early_record_;
  bool any = is_open_;
  for (const auto& lost : lost_) {
    any = any || (lost && !(others_have_begun && is_ready(lost->fault.rank, epoch() + 1)));
  }
  if (!any) return;
  for (const auto& lost : lost_) {
    if (lost) collect(lost->fault, lost->when, listened_before_, now, /*tell=*/true);
  }
  // This rank begins no next epoch, so it collects that epoch's faults together with the losses.
  for (const Told& told : std::exchange(early_, {})) collect_early(told.fault, told.when, now);
  for (const Fault& fault : std::exchange(early_record_, {}).value_or(std::vector<Fault>())) {
    collect_early(fault, now, now);
  }
}

// Collects an exception of the next epoch, beside losses. It must not replace the loss of its own
// rank: the record is the last one, so it must name a loss.
void FailureRecords::collect_early(const Fault& fault, Time when, Time now) {
  if (!may_be_lost(fault.rank)) collect(fault, when, listened_before_, now, /*tell=*/false);
}

}  // namespace gpipe::distributed
