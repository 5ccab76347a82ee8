// The functions of Control::Impl that its thread runs: they hear the other ranks, and decide.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/control_impl.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {

using internal::DamagedMessage;

std::string Control::Impl::seconds(Milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(time.count()) / 1000);
  return text;
}

void Control::Impl::run() {
  try {
    while (turn()) {
    }
  } catch (const std::exception& error) {
    // The thread fails if memory or file descriptors run out. Closing the connections tells the
    // other ranks.
    const internal::MutexLock lock(mutex_);
    mesh_.close_all();
    Fault fault;
    fault.rank = options_.rank;
    fault.host = options_.host;
    fault.text = std::string("its connection to the others failed: ") + error.what();
    records_.end(std::move(fault));
    records_changed();
  }
  cancel_if_asked();
  changed_.notify_all();
}

bool Control::Impl::turn() {
  std::vector<pollfd> polled;
  int timeout = 0;
  {
    const internal::MutexLock lock(mutex_);
    if (stop_) return false;
    polled = descriptors();
    timeout = milliseconds_to_wait();
  }
  if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) {
    throw std::system_error(errno, std::generic_category(), "poll");
  }
  {
    const internal::MutexLock lock(mutex_);
    uint64_t woken = 0;
    while (::read(wake_.get(), &woken, sizeof woken) > 0) {
    }
    const Time now = Clock::now();
    excuse_silence(now);
    records_.listen(now);
    for (const MeshEvent& event : mesh_.read(now)) take(event, now);
    beat(now);
    look_for_silence(now);
    give_up_collectives(now);
    if (may_decide() && Clock::now() >= time_to_decide()) decide();
    records_changed();
  }
  // This process's own work is stopped before the other ranks are told.
  cancel_if_asked();
  {
    const internal::MutexLock lock(mutex_);
    tell_faults(Clock::now());
    mesh_.flush();
  }
  changed_.notify_all();
  return true;
}

void Control::Impl::wake() {
  const uint64_t increment = 1;
  // The write fails only after 2^64 wake-ups.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &increment, sizeof increment);
}

std::vector<pollfd> Control::Impl::descriptors() const {
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
  mesh_.append_descriptors(polled);
  return polled;
}

int Control::Impl::milliseconds_to_wait() const {
  Time next = std::min(next_beat_, mesh_.next_time());
  if (may_decide()) next = std::min(next, time_to_decide());
  const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now()).count();
  const Milliseconds most = std::min<Milliseconds>(beat_, FailureRecords::kListen);
  return static_cast<int>(std::clamp<int64_t>(left, 0, most.count()));
}

void Control::Impl::excuse_silence(Time now) {
  const auto late = now - last_turn_ - 2 * beat_;
  last_turn_ = now;
  if (late <= Clock::duration::zero()) return;
  for (Peer& peer : peers_) peer.last_heard = std::min(now, peer.last_heard + late + beat_);
}

void Control::Impl::take(const MeshEvent& event, Time now) {
  peer_of(event.rank).last_heard = now;
  switch (event.kind) {
    case MeshEvent::Kind::kConnected:
      return catch_up(event.rank);
    case MeshEvent::Kind::kFrame:
      return take(event.rank, event.frame, now);
    case MeshEvent::Kind::kLost:
      return lose(event.rank, FaultKind::kDeath, event.why, now);
  }
}

void Control::Impl::send_queued() {
  mesh_.flush();
  bool all = !records_.has_failed();
  for (int64_t rank = 0; rank < options_.size; ++rank) all = all && !mesh_.has_unwritten(rank);
  if (!all) wake();
}

void Control::Impl::catch_up(int64_t rank) {
  const FailureRound& round = *records_.round();
  for (const std::vector<Fault>* record : {&round.record, &records_.last()}) {
    if (!record->empty()) mesh_.queue(rank, to_frame(*record, round.epoch));
  }
  for (const Fault& fault : records_.open_faults()) {
    mesh_.queue(rank, to_frame(FaultMessage{fault, {}}, round.epoch));
  }
}

void Control::Impl::lose(int64_t rank, FaultKind kind, const std::string& text, Time now) {
  if (peer_of(rank).bye) return;
  records_.lose(Fault{kind, rank, mesh_.host(rank), -1, -1, "", text}, now, Clock::now());
  records_changed();
}

Control::Impl::Time Control::Impl::time_to_decide() const {
  int64_t lower = 0;
  int64_t all = 1;
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    if (!mesh_.is_connected(rank) || !is_needed(rank) || records_.may_be_lost(rank)) continue;
    ++all;
    if (rank < options_.rank) ++lower;
  }
  return records_.time_to_decide(Clock::now(), lower, all);
}

void Control::Impl::decide() {
  records_.decide(Clock::now());
  records_changed();
  mesh_.flush();  // at once, because the turn of the next rank begins soon
}

void Control::Impl::records_changed() {
  failed_.store(records_.has_failed(), std::memory_order_release);
  // Every rank passes a record on: the rank that decided may not have reached all others.
  if (const auto record = records_.take_record()) {
    mesh_.queue_for_all(to_frame(*record, records_.epoch()));
  }
}

void Control::Impl::tell_faults(Time now) {
  for (const auto& [fault, when] : records_.take_untold()) {
    const auto age = std::chrono::duration_cast<std::chrono::microseconds>(now - when);
    mesh_.queue_for_all(to_frame(FaultMessage{fault, age}, records_.epoch()));
  }
}

void Control::Impl::beat(Time now) {
  if (now < next_beat_) return;
  next_beat_ = now + beat_;
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    // A rank that has not read the earlier frames gets no further beat, because these frames show
    // that this rank lives.
    if (mesh_.has_unwritten(rank)) continue;
    mesh_.queue(rank, to_frame(MessageType::kBeat, records_.epoch()));
  }
}

void Control::Impl::look_for_silence(Time now) {
  const auto is_silent = [&](int64_t rank, Milliseconds limit) GPIPE_REQUIRES(mutex_) {
    return mesh_.is_connected(rank) && is_needed(rank) && now - peer_of(rank).last_heard > limit;
  };
  bool any = false;
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    any = any || is_silent(rank, options_.silence_limit);
  }
  if (!any) return;
  // If one rank is silent, the others behind the same network cut are, too. Their last beats came
  // only a little later, so a shorter limit finds them together.
  const Milliseconds limit = options_.silence_limit - 2 * beat_;
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    if (!is_silent(rank, limit)) continue;
    lose(rank, FaultKind::kSilence,
         "nothing came from it for " + seconds(options_.silence_limit) +
             ": it is stopped or overloaded, or the network is cut",
         now);
  }
}

void Control::Impl::take(int64_t rank, const Frame& frame, Time now) {
  try {
    take_valid(rank, frame, now);
  } catch (const DamagedMessage&) {
    mesh_.close(rank);
    lose(rank, FaultKind::kDeath, "it sent what no rank sends", now);
  }
}

void Control::Impl::take_valid(int64_t rank, const Frame& frame, Time now) {
  Peer& peer = peer_of(rank);
  switch (static_cast<MessageType>(frame.type)) {
    case MessageType::kBeat:
      return;
    case MessageType::kFault: {
      FaultMessage message = to_fault(frame.body, options_.size);
      return records_.hear(frame.epoch, std::move(message.fault), now - message.age, now);
    }
    case MessageType::kRecord:
      records_.hear_record(frame.epoch, to_record(frame.body, options_.size), now);
      if (rank == 0) heard_of_rank_0_ = std::max(heard_of_rank_0_, frame.epoch + 1);
      return records_changed();
    case MessageType::kAgree:
      if (options_.rank != 0) throw DamagedMessage("only rank 0 compares");
      return hear(rank, frame.epoch, to_agree(frame.body));
    case MessageType::kVerdict:
      if (rank != 0) throw DamagedMessage("only rank 0 compares");
      return collectives_.know(frame.epoch, to_verdict(frame.body, options_.size));
    case MessageType::kNext:
      return records_.hear_ready(rank, frame.epoch);
    case MessageType::kBye:
      peer.bye = to_bye(frame.body);
      peer.bye_epoch = frame.epoch;
      mesh_.queue(rank, to_frame(MessageType::kByeHeard, records_.epoch()));
      if (is_in_call_) {
        expect_present("call " + std::to_string(calls_done_ + 1),
                       [&](const Bye& bye)
                           GPIPE_REQUIRES(mutex_) { return bye.calls <= calls_done_; });
      }
      if (collectives_.is_waiting()) {
        const uint64_t number = collectives_.begun();
        expect_present(collective_, [&](const Bye& bye) { return bye.agrees < number; });
      }
      if (records_.round()->is_decided() && !records_.is_ready(rank, records_.epoch() + 1)) {
        note_left(rank, "the next epoch");
      }
      return;
    case MessageType::kByeHeard:
      peer.bye_heard = true;
      return;
    case MessageType::kGivenUp: {
      GivenUp given_up = to_given_up(frame.body);
      return give_up(given_up.call, std::move(given_up.text));
    }
    case MessageType::kHello:
    case MessageType::kWelcome:
      break;
  }
  throw DamagedMessage("there is no message of type " + std::to_string(frame.type));
}

void Control::Impl::note_left(int64_t rank, const std::string& what) {
  const Time now = Clock::now();
  const std::string calls = std::to_string(peer_of(rank).bye->calls);
  records_.lose({FaultKind::kLeft, rank, mesh_.host(rank), -1, -1, "",
                 "it ended after " + calls + " calls, but is needed for " + what},
                now, now);
  records_changed();
}

void Control::Impl::hear(int64_t rank, uint32_t epoch, Agree agree) {
  auto verdict = collectives_.hear(rank, epoch, std::move(agree), Clock::now());
  if (verdict) announce({epoch, std::move(*verdict)});
}

void Control::Impl::give_up_collectives(Time now) {
  const std::string waited = seconds(options_.call_limit);
  for (auto& decision : collectives_.give_up(now - options_.call_limit, waited)) {
    announce(std::move(decision));
  }
}

void Control::Impl::announce(Collectives::Decision decision) {
  if (decision.epoch == records_.epoch() && records_.round()->is_decided()) return;
  mesh_.queue_for_all(to_frame(decision.verdict, decision.epoch));
  collectives_.know(decision.epoch, std::move(decision.verdict));
}

void Control::Impl::cancel_if_asked() {
  uint32_t epoch = 0;
  {
    const internal::MutexLock lock(mutex_);
    if (!records_.take_must_cancel()) return;
    epoch = records_.epoch();
  }
  watchers_.cancel(epoch);
}

}  // namespace gpipe::distributed
