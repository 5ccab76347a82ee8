#include "gpipe/distributed/control/control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/collectives.h"
#include "gpipe/distributed/control/control_messages.h"
#include "gpipe/distributed/control/failure_records.h"
#include "gpipe/distributed/control/mesh.h"
#include "gpipe/distributed/sockets/bytes.h"

namespace gpipe::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t kLongestValue = 1 << 20;
constexpr std::size_t kLongestText = 1500;  // so that 256 faults fit into one message
// How long a rank waits for the cause after a symptom.
constexpr Milliseconds kCauseLimit{2000};
constexpr Milliseconds kLeavingLimit{1000};
// How long a rank waits for rank 0's own record if another rank has decided.
constexpr Milliseconds kRecordLimit{500};
// The decision takes less than a second; the limit allows for a machine that was stopped meanwhile.
constexpr Milliseconds kDecisionLimit{10000};

std::string seconds(Milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(time.count()) / 1000);
  return text;
}

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

// This rank's knowledge of another rank, beside the connection.
struct Peer {
  Time last_heard{};
  std::optional<Bye> bye;
  uint32_t bye_epoch = 0;  // the epoch in which it left; bye->agrees counts in that epoch
  bool bye_heard = false;
};

}  // namespace

class Control::Impl {
 public:
  explicit Impl(ControlOptions options)
      : options_(std::move(options)),
        beat_(std::clamp<Milliseconds>(options_.silence_limit / 4, Milliseconds(5),
                                       Milliseconds(250))),
        mesh_({options_.rank, options_.size, options_.host, options_.token,
               std::move(options_.listener)}),
        peers_(static_cast<std::size_t>(options_.size)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        records_(options_.rank, options_.size),
        collectives_(options_.size) {
    if (!wake_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
    last_turn_ = next_beat_ = Clock::now();
    // Signals are for the program's own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Impl() {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      is_leaving_ = true;
      mesh_.queue_for_all(to_frame(Bye{calls_done_, collectives_.ended()}, records_.epoch()));
      wake();
      changed_.wait_for(lock, kLeavingLimit, [&] {
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

  const ControlOptions& options() const { return options_; }
  // Whether this object is the copy in a forked child.
  bool is_a_copy() const { return getpid() != process_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  void add_peer(int64_t rank, const Endpoint& endpoint) {
    std::lock_guard<std::mutex> lock(mutex_);
    mesh_.add_peer(rank, endpoint, Clock::now());
    wake();
  }

  void wait_until_connected(Time deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool in_time = changed_.wait_until(
        lock, deadline, [&] { return records_.has_failed() || mesh_.missing().empty(); });
    if (records_.has_failed()) throw_failure(lock, "");
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

  std::string host_of(int64_t rank) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return rank == options_.rank ? options_.host : mesh_.host(rank);
  }

  void check() {
    std::unique_lock<std::mutex> lock(mutex_);
    // Another thread may just have begun the next epoch.
    if (records_.has_failed()) throw_failure(lock, "");
  }

  // Without `reported_epoch`: a fault of the current epoch.
  void report(Fault fault, std::optional<int64_t> reported_epoch) {
    const Time when = Clock::now();
    uint32_t epoch = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      epoch = records_.epoch();
      if (reported_epoch && *reported_epoch != epoch) return;
    }
    // Stop this process's own work before the others are told.
    watchers_.cancel(epoch);
    std::lock_guard<std::mutex> lock(mutex_);
    if (records_.epoch() != epoch) return;
    fault.rank = options_.rank;
    fault.host = options_.host;
    fault.layer = shortened(std::move(fault.layer));
    fault.text = shortened(std::move(fault.text));
    records_.report(std::move(fault), when, Clock::now());
    records_changed();
    wake();
  }

  // Without `epoch`: a symptom of the current epoch.
  [[noreturn]] void throw_failure(const std::string& symptom, std::optional<int64_t> epoch) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (epoch && *epoch != records_.epoch()) throw std::runtime_error(symptom);
    throw_failure(lock, symptom);
  }

  void agree(const std::string& name, const std::string& value) {
    if (name.size() + value.size() > kLongestValue) {
      throw std::invalid_argument("agree('" + name + "'): " + std::to_string(value.size()) +
                                  " bytes are too many to compare; compare a hash of them");
    }
    call_collective({0, name, value, /*is_collected=*/false, /*is_patient=*/false});
  }

  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    bool is_patient) {
    const std::size_t longest = longest_collected(name, options_.size);
    if (value.size() > longest || name.size() > kLongestValue) {
      throw std::invalid_argument("exchange('" + name + "'): " + std::to_string(value.size()) +
                                  " bytes are too many; each of " + std::to_string(options_.size) +
                                  " ranks may give " + std::to_string(longest));
    }
    return call_collective({0, name, value, /*is_collected=*/true, is_patient});
  }

  int64_t epoch() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return records_.epoch();
  }

  void next_epoch() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto round = records_.round();
    if (!round->has_failed) {
      throw std::logic_error("next_epoch() is for after a failure, and nothing has failed");
    }
    wait_for_record(lock, *round);
    // Another thread may begin the next epoch meanwhile.
    const auto is_over = [&] { return records_.round() != round; };
    if (is_over()) return;
    const uint32_t target = round->epoch + 1;
    // Ranks that left before the failure, or while it was being told, will not come.
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      if (peer_of(rank).bye && !records_.is_ready(rank, target)) note_left(rank, "the next epoch");
    }
    mesh_.queue_for_all(to_frame(MessageType::kNext, target));
    wake();
    const auto is_decided = [&] { return is_over() || !records_.last().empty(); };
    const uint64_t call = calls_begun_;
    changed_.wait_for(lock, options_.call_limit, [&] {
      return is_decided() || (records_.may_go_on() && unready(target).empty()) || is_given_up(call);
    });
    if (!is_decided() && records_.is_open()) {
      changed_.wait_for(lock, kDecisionLimit, is_decided);
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

  void count_call() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_begun_;
  }
  void check_not_given_up() {
    std::lock_guard<std::mutex> lock(mutex_);
    throw_if_given_up();
  }

  Watchers& watchers() { return watchers_; }

  void begin_call() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (records_.has_failed()) throw_failure(lock, "");
    const uint64_t number = calls_done_ + 1;
    expect_present("call " + std::to_string(number),
                   [&](const Bye& bye) { return bye.calls < number; });
    if (records_.has_failed()) {
      wake();
      throw_failure(lock, "");
    }
    is_in_call_ = true;
    call_epoch_ = records_.epoch();
  }
  void end_call(bool done) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (records_.epoch() != call_epoch_) return;
    is_in_call_ = false;
    if (done) {
      ++calls_done_;
      return;
    }
    if (records_.has_failed()) return;
    const uint32_t epoch = call_epoch_;  // another thread may begin a call from here on
    lock.unlock();
    Fault fault;
    fault.text = "its part of a call that all ranks make ended with an exception";
    report(std::move(fault), epoch);
  }

 private:
  // A call of agree() or exchange(), whose number is filled in. Returns what was collected.
  std::vector<std::string> call_collective(Agree words) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (records_.has_failed()) throw_failure(lock, "");
    const auto round = records_.round();
    if (!mesh_.missing().empty()) {
      throw std::logic_error((words.is_collected ? "exchange('" : "agree('") + words.name +
                             "') before all ranks are connected");
    }
    const uint64_t number = collectives_.begin();
    words.number = number;
    words.call = calls_begun_;
    collective_ =
        shortened((words.is_collected ? "exchanging '" : "comparing '") + words.name + "'");
    expect_present(collective_, [&](const Bye& bye) { return bye.agrees < number; });
    if (options_.rank == 0) {
      hear(0, round->epoch, std::move(words));
    } else {
      mesh_.queue(0, to_frame(words, round->epoch));
    }
    send_queued();
    const auto has_verdict = [&] {
      return records_.round() == round && collectives_.has_verdict();
    };
    changed_.wait(lock, [&] { return has_verdict() || round->is_decided(); });
    // Other ranks may have got a verdict before they failed. Then it arrives here before rank 0's
    // record does.
    changed_.wait_for(lock, kRecordLimit, [&] {
      return has_verdict() || options_.rank == 0 || heard_of_rank_0_ > round->epoch ||
             records_.may_be_lost(0) || records_.round() != round;
    });
    if (!has_verdict()) throw_failure(lock, round);
    Verdict verdict = collectives_.end();
    if (verdict.given_up > 0) give_up(verdict.given_up, verdict.text);
    if (!verdict.text.empty()) throw Disagreement(verdict.text);
    return std::move(verdict.values);
  }

  // --- The thread's functions. They are called without mutex_.

  void run() {
    try {
      while (turn()) {
      }
    } catch (const std::exception& error) {
      // Out of memory or file descriptors. The other ranks see that the connections close.
      std::lock_guard<std::mutex> lock(mutex_);
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

  bool turn() {
    std::vector<pollfd> polled;
    int timeout = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) return false;
      polled = descriptors();
      timeout = milliseconds_to_wait();
    }
    if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "poll");
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
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
    // Stop this process's own work before the others are told.
    cancel_if_asked();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tell_faults(Clock::now());
      mesh_.flush();
    }
    changed_.notify_all();
    return true;
  }

  void wake() {
    const uint64_t increment = 1;
    // The write fails only after 2^64 wake-ups.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &increment, sizeof increment);
  }

  std::vector<pollfd> descriptors() const {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    mesh_.append_descriptors(polled);
    return polled;
  }

  int milliseconds_to_wait() const {
    Time next = std::min(next_beat_, mesh_.next_time());
    if (may_decide()) next = std::min(next, time_to_decide());
    const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now()).count();
    const Milliseconds most = std::min<Milliseconds>(beat_, FailureRecords::kListen);
    return static_cast<int>(std::clamp<int64_t>(left, 0, most.count()));
  }

  // --- What follows needs mutex_.

  const Peer& peer_of(int64_t rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  Peer& peer_of(int64_t rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // If this thread did not listen for a while (the process was stopped, the machine overloaded),
  // that time does not count as other ranks' silence.
  void excuse_silence(Time now) {
    const auto late = now - last_turn_ - 2 * beat_;
    last_turn_ = now;
    if (late <= Clock::duration::zero()) return;
    for (Peer& peer : peers_) peer.last_heard = std::min(now, peer.last_heard + late + beat_);
  }

  void take(const MeshEvent& event, Time now) {
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

  // Writes what is queued immediately: rank 0 may go on, and end, as soon as it has decided, and
  // the others must have its verdict then. This also saves waking the thread, unless more is left.
  void send_queued() {
    mesh_.flush();
    bool all = !records_.has_failed();
    for (int64_t rank = 0; rank < options_.size; ++rank) all = all && !mesh_.has_unwritten(rank);
    if (!all) wake();
  }

  // Sends a rank that has just connected what the others were told before.
  void catch_up(int64_t rank) {
    const FailureRound& round = *records_.round();
    for (const std::vector<Fault>* record : {&round.record, &records_.last()}) {
      if (!record->empty()) mesh_.queue(rank, to_frame(*record, round.epoch));
    }
    for (const Fault& fault : records_.open_faults()) {
      mesh_.queue(rank, to_frame(FaultMessage{fault, {}}, round.epoch));
    }
  }

  // A rank can no longer take part. If it has said that it leaves, the ranks that need it know.
  void lose(int64_t rank, FaultKind kind, const std::string& text, Time now) {
    if (peer_of(rank).bye) return;
    records_.lose(Fault{kind, rank, mesh_.host(rank), -1, -1, "", text}, now, Clock::now());
    records_changed();
  }

  bool is_needed(int64_t rank) const { return !peer_of(rank).bye && !records_.is_lost(rank); }

  // A rank that leaves does not decide: the others know that it leaves and give it no turn.
  bool may_decide() const { return records_.is_open() && !is_leaving_; }

  // A rank that cannot be reached gets no turn.
  Time time_to_decide() const {
    int64_t lower = 0;
    int64_t all = 1;
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      if (!mesh_.is_connected(rank) || !is_needed(rank) || records_.may_be_lost(rank)) continue;
      ++all;
      if (rank < options_.rank) ++lower;
    }
    return records_.time_to_decide(Clock::now(), lower, all);
  }

  void decide() {
    records_.decide(Clock::now());
    records_changed();
    mesh_.flush();  // before anything else: the turn of the next rank begins soon
  }

  // To be called when the records may have changed.
  void records_changed() {
    failed_.store(records_.has_failed(), std::memory_order_release);
    // Every rank passes a record on: the rank that decided may not have reached all others.
    if (const auto record = records_.take_record()) {
      mesh_.queue_for_all(to_frame(*record, records_.epoch()));
    }
  }

  void tell_faults(Time now) {
    for (const auto& [fault, when] : records_.take_untold()) {
      const auto age = std::chrono::duration_cast<std::chrono::microseconds>(now - when);
      mesh_.queue_for_all(to_frame(FaultMessage{fault, age}, records_.epoch()));
    }
  }

  void beat(Time now) {
    if (now < next_beat_) return;
    next_beat_ = now + beat_;
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      // A rank that has not read its earlier frames needs no further beat.
      if (mesh_.has_unwritten(rank)) continue;
      mesh_.queue(rank, to_frame(MessageType::kBeat, records_.epoch()));
    }
  }

  void look_for_silence(Time now) {
    const auto is_silent = [&](int64_t rank, Milliseconds limit) {
      return mesh_.is_connected(rank) && is_needed(rank) && now - peer_of(rank).last_heard > limit;
    };
    bool any = false;
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      any = any || is_silent(rank, options_.silence_limit);
    }
    if (!any) return;
    // Ranks behind the same network cut are lost, too: their last beats came only a little later.
    const Milliseconds limit = options_.silence_limit - 2 * beat_;
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      if (!is_silent(rank, limit)) continue;
      lose(rank, FaultKind::kSilence,
           "nothing came from it for " + seconds(options_.silence_limit) +
               ": it is stopped or overloaded, or the network is cut",
           now);
    }
  }

  void take(int64_t rank, const Frame& frame, Time now) {
    try {
      take_valid(rank, frame, now);
    } catch (const DamagedMessage&) {
      mesh_.close(rank);
      lose(rank, FaultKind::kDeath, "it sent what no rank sends", now);
    }
  }

  void take_valid(int64_t rank, const Frame& frame, Time now) {
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
                         [&](const Bye& bye) { return bye.calls <= calls_done_; });
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

  // Ranks that have left before `what` have failed.
  template <typename LeftBefore>
  void expect_present(const std::string& what, LeftBefore left_before) {
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      const Peer& peer = peer_of(rank);
      if (!peer.bye || peer.bye_epoch > records_.epoch()) continue;
      if (peer.bye_epoch < records_.epoch() || left_before(*peer.bye)) note_left(rank, what);
    }
  }

  void note_left(int64_t rank, const std::string& what) {
    const Time now = Clock::now();
    const std::string calls = std::to_string(peer_of(rank).bye->calls);
    records_.lose({FaultKind::kLeft, rank, mesh_.host(rank), -1, -1, "",
                   "it ended after " + calls + " calls, but is needed for " + what},
                  now, now);
    records_changed();
  }

  void hear(int64_t rank, uint32_t epoch, Agree words) {
    auto verdict = collectives_.hear(rank, epoch, std::move(words), Clock::now());
    if (verdict) announce({epoch, std::move(*verdict)});
  }

  void give_up_collectives(Time now) {
    const std::string waited = seconds(options_.call_limit);
    for (auto& decision : collectives_.give_up(now - options_.call_limit, waited)) {
      announce(std::move(decision));
    }
  }

  // Sends nothing after the record: a rank that has thrown it may be in another call by now.
  void announce(Collectives::Decision decision) {
    if (decision.epoch == records_.epoch() && records_.round()->is_decided()) return;
    mesh_.queue_for_all(to_frame(decision.verdict, decision.epoch));
    collectives_.know(decision.epoch, std::move(decision.verdict));
  }

  void throw_if_given_up() const {
    if (!is_given_up(calls_begun_)) return;
    throw Disagreement("call " + std::to_string(calls_begun_) + " of rank " +
                       std::to_string(options_.rank) +
                       " is not made: it has failed on another rank, and all go on with call " +
                       std::to_string(calls_given_up_ + 1) + ". Why: " + given_up_text_);
  }
  bool is_given_up(uint64_t call) const { return call <= calls_given_up_ && call > 0; }
  void give_up(uint64_t call, std::string text) {
    if (call <= calls_given_up_) return;
    calls_given_up_ = call;
    given_up_text_ = std::move(text);
  }

  std::vector<int64_t> unready(uint32_t target) const {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      if (rank != options_.rank && !records_.is_ready(rank, target)) ranks.push_back(rank);
    }
    return ranks;
  }

  void begin_next_epoch() {
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

  // `round` stays the same if another thread begins the next epoch meanwhile.
  void wait_for_record(std::unique_lock<std::mutex>& lock, const FailureRound& round) {
    changed_.wait_for(lock, kDecisionLimit, [&] { return round.is_decided(); });
    if (!round.is_decided()) decide();
  }

  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock, const std::string& symptom) {
    const auto round = records_.round();
    changed_.wait_for(lock, kCauseLimit, [&] { return round->has_failed; });
    if (!round->has_failed) {
      lock.unlock();
      Fault fault;
      fault.text = symptom;
      report(std::move(fault), round->epoch);
      lock.lock();
    }
    throw_failure(lock, round);
  }

  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock,
                                  const std::shared_ptr<const FailureRound>& round) {
    wait_for_record(lock, *round);
    lock.unlock();
    // When the caller catches the failure, nothing in this process must still wait.
    watchers_.cancel(round->epoch);
    throw DistributedFailure(round->record);
  }

  void cancel_if_asked() {
    uint32_t epoch = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!records_.take_must_cancel()) return;
      epoch = records_.epoch();
    }
    watchers_.cancel(epoch);
  }

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

Control::Control(ControlOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Control::~Control() {
  // Threads exist only in the parent. Destroying a condition variable would wait here for threads
  // that do not exist, so the copy in a forked child is leaked.
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
