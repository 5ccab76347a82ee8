#include "gpipe/distributed/control/control.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "gpipe/distributed/control/control_impl.h"

namespace gpipe::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;
using internal::MutexLock;
using internal::MutexUnlock;

constexpr std::size_t kLongestValue = 1 << 20;
constexpr std::size_t kLongestText = 1500;  // so that 256 faults fit into one message
// How long throw_failure() waits for another rank to report the cause of a symptom.
constexpr Milliseconds kCauseLimit{2000};
constexpr Milliseconds kLeavingLimit{1000};
// How long a call waits, when a record is decided, for rank 0's own record or verdict.
constexpr Milliseconds kRecordLimit{500};
// How long next_epoch() waits for the decision. It takes less than a second; the limit allows for a
// machine that was stopped meanwhile.
constexpr Milliseconds kDecisionLimit{10000};

std::string shortened(std::string text) {
  if (text.size() <= kLongestText) return text;
  return text.substr(0, kLongestText) + "...";
}

std::string listed(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace

Control::Impl::Impl(ControlOptions options)
    : options_(std::move(options)),
      beat_(
          std::clamp<Milliseconds>(options_.silence_limit / 4, Milliseconds(5), Milliseconds(250))),
      mesh_({options_.rank, options_.size, options_.host, options_.token,
             std::move(options_.listener)}),
      peers_(static_cast<std::size_t>(options_.size)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      records_(options_.rank, options_.size),
      collectives_(options_.size) {
  if (!wake_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
  last_turn_ = next_beat_ = Clock::now();
  // The thread starts with all signals blocked, because signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Control::Impl::~Impl() {
  {
    const MutexLock lock(mutex_);
    is_leaving_ = true;
    mesh_.queue_for_all(to_frame(Bye{calls_done_, collectives_.ended()}, records_.epoch()));
    wake();
    changed_.wait_for(mutex_, kLeavingLimit, [&]() GPIPE_REQUIRES(mutex_) {
      for (int64_t rank = 0; rank < options_.size; ++rank) {
        if (mesh_.is_connected(rank) && !peer_of(rank).bye_heard && !records_.is_lost(rank)) {
          return false;
        }
      }
      return true;
    });
    stop_ = true;
    wake();
  }
  thread_.join();
}

void Control::Impl::add_peer(int64_t rank, const Endpoint& endpoint) {
  const MutexLock lock(mutex_);
  mesh_.add_peer(rank, endpoint, Clock::now());
  wake();
}

void Control::Impl::wait_until_connected(Time deadline) {
  const MutexLock lock(mutex_);
  const bool in_time = changed_.wait_until(mutex_, deadline, [&]() GPIPE_REQUIRES(mutex_) {
    return records_.has_failed() || mesh_.missing().empty();
  });
  if (records_.has_failed()) throw_with_lock("");
  if (in_time) return;
  std::string text =
      listed(mesh_.missing()) + " did not connect in time (WorldOptions::rendezvous_limit)";
  bool are_known = true;
  for (const int64_t rank : mesh_.missing()) {
    const Endpoint& endpoint = mesh_.endpoint(rank);
    if (endpoint.port != 0) {
      text += "; rank " + std::to_string(rank) + " should answer at " + to_text(endpoint);
      if (!mesh_.last_error(rank).empty()) text += ": " + mesh_.last_error(rank);
    } else {
      are_known = false;
    }
  }
  if (!mesh_.accept_error().empty()) {
    text += "; this process (rank " + std::to_string(options_.rank) +
            ") cannot accept connections: " + mesh_.accept_error();
  } else if (!are_known) {
    text +=
        "; was each rank started once, with the same number of processes, and the same "
        "address and port of rank 0?";
  }
  throw std::runtime_error(text);
}

std::string Control::Impl::host_of(int64_t rank) const {
  const MutexLock lock(mutex_);
  return rank == options_.rank ? options_.host : mesh_.host(rank);
}

void Control::Impl::check() {
  const MutexLock lock(mutex_);
  // If another thread has just begun the next epoch, there is no failure to throw any more.
  if (records_.has_failed()) throw_with_lock("");
}

void Control::Impl::report(Fault fault, std::optional<int64_t> reported_epoch) {
  const Time when = Clock::now();
  uint32_t epoch = 0;
  {
    const MutexLock lock(mutex_);
    epoch = records_.epoch();
    if (reported_epoch && *reported_epoch != epoch) return;
  }
  // This process's own work is stopped before the other ranks are told.
  watchers_.cancel(epoch);
  const MutexLock lock(mutex_);
  if (records_.epoch() != epoch) return;
  fault.rank = options_.rank;
  fault.host = options_.host;
  fault.layer = shortened(std::move(fault.layer));
  fault.text = shortened(std::move(fault.text));
  records_.report(std::move(fault), when, Clock::now());
  records_changed();
  wake();
}

void Control::Impl::throw_failure(const std::string& symptom, std::optional<int64_t> epoch) {
  const MutexLock lock(mutex_);
  if (epoch && *epoch != records_.epoch()) throw std::runtime_error(symptom);
  throw_with_lock(symptom);
}

void Control::Impl::agree(const std::string& name, const std::string& value) {
  if (name.size() + value.size() > kLongestValue) {
    throw std::invalid_argument("agree('" + name + "'): " + std::to_string(value.size()) +
                                " bytes are too many to compare; compare a hash of them");
  }
  call_collective({name, value, /*is_collected=*/false, /*is_patient=*/false});
}

std::vector<std::string> Control::Impl::exchange(const std::string& name, const std::string& value,
                                                 bool is_patient) {
  const std::size_t longest = longest_collected(name, options_.size);
  if (value.size() > longest || name.size() > kLongestValue) {
    throw std::invalid_argument("exchange('" + name + "'): " + std::to_string(value.size()) +
                                " bytes are too many; each of " + std::to_string(options_.size) +
                                " ranks may give " + std::to_string(longest));
  }
  return call_collective({name, value, /*is_collected=*/true, is_patient});
}

int64_t Control::Impl::epoch() const {
  const MutexLock lock(mutex_);
  return records_.epoch();
}

void Control::Impl::next_epoch() {
  const MutexLock lock(mutex_);
  const auto round = records_.round();
  if (!round->has_failed) {
    throw std::logic_error("next_epoch() is for after a failure, and nothing has failed");
  }
  wait_for_record(*round);
  // If another thread begins the next epoch meanwhile, this call is over, too.
  const auto is_over = [&]() GPIPE_REQUIRES(mutex_) { return records_.round() != round; };
  if (is_over()) return;
  const uint32_t target = round->epoch + 1;
  // Ranks that left before the failure, or while it was being told, do not come to the next epoch,
  // so they count as lost.
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    if (peer_of(rank).bye && !records_.is_ready(rank, target)) note_left(rank, "the next epoch");
  }
  mesh_.queue_for_all(to_frame(MessageType::kNext, target));
  wake();
  const auto is_decided = [&]() GPIPE_REQUIRES(mutex_) {
    return is_over() || !records_.last().empty();
  };
  const uint64_t call = calls_begun_;
  changed_.wait_for(mutex_, options_.call_limit, [&]() GPIPE_REQUIRES(mutex_) {
    return is_decided() || (records_.may_go_on() && unready(target).empty()) || is_given_up(call);
  });
  if (!is_decided() && records_.is_open()) {
    changed_.wait_for(mutex_, kDecisionLimit, is_decided);
    if (!is_decided()) decide();
  }
  if (is_over()) return;
  if (!records_.last().empty()) throw DistributedFailure(records_.last());
  throw_if_given_up();
  if (!unready(target).empty()) {
    const std::string text =
        listed(unready(target)) + " did not come within " + seconds(options_.call_limit) +
        " to the first call after a failure, where rank " + std::to_string(options_.rank) +
        " waits in its call " + std::to_string(call) +
        ": all ranks must make the same calls in the same order";
    give_up(call, text);
    mesh_.queue_for_all(to_frame(GivenUp{call, text}, records_.epoch()));
    send_queued();
    throw Disagreement(text);
  }
  begin_next_epoch();
}

void Control::Impl::count_call() {
  const MutexLock lock(mutex_);
  ++calls_begun_;
}

void Control::Impl::check_not_given_up() {
  const MutexLock lock(mutex_);
  throw_if_given_up();
}

void Control::Impl::begin_call() {
  const MutexLock lock(mutex_);
  if (records_.has_failed()) throw_with_lock("");
  const uint64_t number = calls_done_ + 1;
  expect_present("call " + std::to_string(number),
                 [&](const Bye& bye) { return bye.calls < number; });
  if (records_.has_failed()) {
    wake();
    throw_with_lock("");
  }
  is_in_call_ = true;
  call_epoch_ = records_.epoch();
}

void Control::Impl::end_call(bool done) {
  uint32_t epoch = 0;
  {
    const MutexLock lock(mutex_);
    if (records_.epoch() != call_epoch_) return;
    is_in_call_ = false;
    if (done) {
      ++calls_done_;
      return;
    }
    if (records_.has_failed()) return;
    epoch = call_epoch_;  // another thread may begin a call from here on
  }
  Fault fault;
  fault.text = "its part of a call that all ranks make ended with an exception";
  report(std::move(fault), epoch);
}

std::vector<std::string> Control::Impl::call_collective(Agreement::Words words) {
  const MutexLock lock(mutex_);
  if (records_.has_failed()) throw_with_lock("");
  const auto round = records_.round();
  if (!mesh_.missing().empty()) {
    throw std::logic_error((words.is_collected ? "exchange('" : "agree('") + words.name +
                           "') before all ranks are connected");
  }
  const uint64_t number = collectives_.begin();
  words.call = calls_begun_;
  collective_ = shortened((words.is_collected ? "exchanging '" : "comparing '") + words.name + "'");
  expect_present(collective_, [&](const Bye& bye) { return bye.agrees < number; });
  Agree agree{number, std::move(words)};
  if (options_.rank == 0) {
    hear(0, round->epoch, std::move(agree));
  } else {
    mesh_.queue(0, to_frame(agree, round->epoch));
  }
  send_queued();
  const auto has_verdict = [&]() GPIPE_REQUIRES(mutex_) {
    return records_.round() == round && collectives_.has_verdict();
  };
  changed_.wait(mutex_,
                [&]() GPIPE_REQUIRES(mutex_) { return has_verdict() || round->is_decided(); });
  // If there is a record, other ranks may have got the verdict of this call before the failure.
  // Then the verdict arrives here before rank 0's record does, so this waits for one of the two.
  changed_.wait_for(mutex_, kRecordLimit, [&]() GPIPE_REQUIRES(mutex_) {
    return has_verdict() || options_.rank == 0 || heard_of_rank_0_ > round->epoch ||
           records_.may_be_lost(0) || records_.round() != round;
  });
  if (!has_verdict()) throw_with_lock(round);
  Verdict verdict = collectives_.end();
  if (verdict.given_up > 0) give_up(verdict.given_up, verdict.text);
  if (!verdict.text.empty()) throw Disagreement(verdict.text);
  return std::move(verdict.values);
}

void Control::Impl::throw_if_given_up() const {
  if (!is_given_up(calls_begun_)) return;
  throw Disagreement("call " + std::to_string(calls_begun_) + " of rank " +
                     std::to_string(options_.rank) +
                     " is not made: it has failed on another rank, and all go on with call " +
                     std::to_string(calls_given_up_ + 1) + ". Why: " + given_up_text_);
}

void Control::Impl::give_up(uint64_t call, std::string text) {
  if (call <= calls_given_up_) return;
  calls_given_up_ = call;
  given_up_text_ = std::move(text);
}

std::vector<int64_t> Control::Impl::unready(uint32_t target) const {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank && !records_.is_ready(rank, target)) ranks.push_back(rank);
  }
  return ranks;
}

void Control::Impl::begin_next_epoch() {
  const uint32_t epoch = records_.epoch() + 1;
  calls_done_ = 0;
  is_in_call_ = false;
  collectives_.begin_epoch(epoch);
  watchers_.begin_epoch(epoch);
  records_.begin_next_epoch(Clock::now());
  records_changed();
  changed_.notify_all();
  wake();
}

void Control::Impl::wait_for_record(const FailureRound& round) {
  changed_.wait_for(mutex_, kDecisionLimit,
                    [&]() GPIPE_REQUIRES(mutex_) { return round.is_decided(); });
  if (!round.is_decided()) decide();
}

void Control::Impl::throw_with_lock(const std::string& symptom) {
  const auto round = records_.round();
  changed_.wait_for(mutex_, kCauseLimit,
                    [&]() GPIPE_REQUIRES(mutex_) { return round->has_failed; });
  if (!round->has_failed) {
    Fault fault;
    fault.text = symptom;
    const MutexUnlock unlock(mutex_);
    report(std::move(fault), round->epoch);
  }
  throw_with_lock(round);
}

void Control::Impl::throw_with_lock(const std::shared_ptr<const FailureRound>& round) {
  wait_for_record(*round);
  {
    const MutexUnlock unlock(mutex_);
    // The watches are canceled before the throw, because nothing in this process may still wait for
    // another rank when the caller catches the failure.
    watchers_.cancel(round->epoch);
  }
  throw DistributedFailure(round->record);
}

Control::Control(ControlOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Control::~Control() {
  // In a forked child this object is a copy, whose threads exist only in the parent. Destroying its
  // condition variable would wait for these threads, so the copy is leaked.
  if (impl_->is_a_copy()) (void)impl_.release();
}

int64_t Control::rank() const { return impl_->options().rank; }
int64_t Control::size() const { return impl_->options().size; }
void Control::add_peer(int64_t rank, const Endpoint& endpoint) { impl_->add_peer(rank, endpoint); }
void Control::wait_until_connected(Time deadline) { impl_->wait_until_connected(deadline); }
std::string Control::host_of(int64_t rank) const { return impl_->host_of(rank); }
void Control::check() {
  if (impl_->failed()) impl_->check();
}
bool Control::failed() const { return impl_->failed(); }
void Control::report(Fault fault) { impl_->report(std::move(fault), std::nullopt); }
void Control::report(Fault fault, int64_t epoch) { impl_->report(std::move(fault), epoch); }
void Control::report_current_exception() {
  Fault fault;
  try {
    throw;
  } catch (const DistributedFailure&) {
    return;
  } catch (const std::exception& error) {
    fault.text = error.what();
  } catch (...) {
    fault.text = "an exception of an unknown type";
  }
  impl_->report(std::move(fault), std::nullopt);
}
void Control::throw_failure(const std::string& symptom) {
  impl_->throw_failure(symptom, std::nullopt);
}
void Control::throw_failure(const std::string& symptom, int64_t epoch) {
  impl_->throw_failure(symptom, epoch);
}
void Control::agree(const std::string& name, const std::string& value) {
  impl_->agree(name, value);
}
std::vector<std::string> Control::exchange(const std::string& name, const std::string& value,
                                           bool is_patient) {
  return impl_->exchange(name, value, is_patient);
}
void Control::count_call() { impl_->count_call(); }
void Control::check_not_given_up() { impl_->check_not_given_up(); }
int64_t Control::epoch() const { return impl_->epoch(); }
void Control::next_epoch() { impl_->next_epoch(); }

Control::Watch::Watch(Control& control, std::function<void()> cancel)
    : control_(control), place_(control.impl_->watchers().add(std::move(cancel))) {}
Control::Watch::~Watch() { control_.impl_->watchers().remove(place_); }

Control::Call::Call(Control& control) : control_(control) { control_.impl_->begin_call(); }
Control::Call::~Call() { control_.impl_->end_call(done_); }

}  // namespace gpipe::distributed
