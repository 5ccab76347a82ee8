#include "gpipe/distributed/control.h"

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
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/bytes.h"
#include "gpipe/distributed/collectives.h"
#include "gpipe/distributed/control_messages.h"
#include "gpipe/distributed/fault_collector.h"
#include "gpipe/distributed/mesh.h"

namespace gpipe::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

// Faults that happen within 20 ms are told together; the rest of it is for their way here.
constexpr Milliseconds kWindow{40};
// If the rank that decides does not, the next one does. All in all under a second for three of
// them.
constexpr Milliseconds kNextDecides{200};
constexpr std::size_t kLongestValue = 1 << 20;
constexpr std::size_t kLongestText = 1500;  // of 256 faults, all fit into one message
// How long after a symptom the cause is waited for.
constexpr Milliseconds kCauseLimit{2000};
constexpr Milliseconds kLeavingLimit{1000};
// The decision takes less than a second; this is for a machine that has stopped meanwhile.
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

// What is known of another rank, beside its connection.
struct Peer {
  Time last_heard{};
  std::optional<Bye> bye;
  uint32_t bye_epoch = 0;  // that it left in: its counts are that epoch's
  bool bye_heard = false;
  std::optional<Fault> loss;  // it can take part in nothing any more
  uint32_t next_epoch = 0;    // that it is ready for

  bool is_needed() const { return !loss && !bye; }
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
    if (getpid() != process_) {  // the thread is the parent's
      thread_.detach();
      return;
    }
    {
      std::unique_lock<std::mutex> lock(mutex_);
      mesh_.queue_for_all(to_frame(Bye{calls_done_, collectives_.ended()}, epoch_));
      wake();
      changed_.wait_for(lock, kLeavingLimit, [&] {
        for (int64_t rank = 0; rank < options_.size; ++rank) {
          const Peer& peer = peer_of(rank);
          if (mesh_.is_connected(rank) && !peer.bye_heard && !peer.loss) return false;
        }
        return true;
      });
      stop_ = true;
      wake();
    }
    thread_.join();
  }

  const ControlOptions& options() const { return options_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  void add_peer(int64_t rank, const Endpoint& endpoint) {
    std::lock_guard<std::mutex> lock(mutex_);
    mesh_.add_peer(rank, endpoint, Clock::now());
    wake();
  }

  void wait_until_connected(Time deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool in_time = changed_.wait_until(
        lock, deadline, [&] { return phase_ != Phase::kRunning || mesh_.missing().empty(); });
    if (phase_ != Phase::kRunning) throw_failure(lock, "");
    if (in_time) return;
    std::string text = listed(mesh_.missing()) + " did not connect in time";
    for (const int64_t rank : mesh_.missing()) {
      const Endpoint& endpoint = mesh_.endpoint(rank);
      if (endpoint.port != 0) {
        text += "; rank " + std::to_string(rank) + " should answer at " + to_text(endpoint);
      }
    }
    throw std::runtime_error(text);
  }

  std::string host_of(int64_t rank) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return rank == options_.rank ? options_.host : mesh_.host(rank);
  }

  void report(Fault fault) {
    const Time now = Clock::now();
    cancel_watched();
    std::lock_guard<std::mutex> lock(mutex_);
    fault.rank = options_.rank;
    fault.host = options_.host;
    fault.layer = shortened(std::move(fault.layer));
    fault.text = shortened(std::move(fault.text));
    note(std::move(fault), now, /*tell=*/true);
    wake();
  }

  [[noreturn]] void throw_failure(const std::string& symptom) {
    std::unique_lock<std::mutex> lock(mutex_);
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
    return epoch_;
  }

  void next_epoch() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (phase_ == Phase::kRunning) {
      throw std::logic_error("next_epoch() is for after a failure, and nothing has failed");
    }
    wait_for_record(lock);
    if (is_fenced_ || names_a_loss(record_)) throw DistributedFailure(record_);
    const uint32_t target = epoch_ + 1;
    // Who left before the failure, or while it was told, will not come.
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      const Peer& peer = peer_of(rank);
      if (peer.bye && peer.next_epoch < target) note_left(rank, "the next epoch");
    }
    mesh_.queue_for_all(to_frame(MessageType::kNext, target));
    wake();
    const bool in_time = changed_.wait_for(lock, options_.call_limit, [&] {
      return unready(target).empty() || will_not_be_ready(target);
    });
    if (!in_time) {
      throw std::runtime_error(listed(unready(target)) + " did not come to next_epoch() within " +
                               seconds(options_.call_limit));
    }
    if (!unready(target).empty()) throw DistributedFailure(losses());
    begin_epoch(target);
  }

  void watch(std::list<std::function<void()>>::iterator* place, std::function<void()> cancel) {
    std::lock_guard<std::mutex> lock(watch_mutex_);
    watched_.push_front(std::move(cancel));
    *place = watched_.begin();
    if (is_cancelled_) watched_.front()();
  }
  void unwatch(std::list<std::function<void()>>::iterator place) {
    std::lock_guard<std::mutex> lock(watch_mutex_);
    watched_.erase(place);
  }

  void begin_call() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (phase_ != Phase::kRunning) throw_failure(lock, "");
    const uint64_t number = calls_done_ + 1;
    expect_present("call " + std::to_string(number),
                   [&](const Bye& bye) { return bye.calls < number; });
    if (phase_ != Phase::kRunning) {
      wake();
      throw_failure(lock, "");
    }
    is_in_call_ = true;
  }
  void end_call(bool done) {
    std::unique_lock<std::mutex> lock(mutex_);
    is_in_call_ = false;
    if (done) {
      ++calls_done_;
      return;
    }
    if (phase_ != Phase::kRunning) return;
    lock.unlock();
    Fault fault;
    fault.text = "its part of a call that all ranks make ended with an exception";
    report(std::move(fault));
  }

 private:
  // A call of agree() or exchange(), whose number is filled in. Returns what was collected.
  std::vector<std::string> call_collective(Agree words) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (phase_ != Phase::kRunning) throw_failure(lock, "");
    if (!mesh_.missing().empty()) {
      throw std::logic_error((words.is_collected ? "exchange('" : "agree('") + words.name +
                             "') before all ranks are connected");
    }
    const uint64_t number = collectives_.begin();
    words.number = number;
    collective_ =
        shortened((words.is_collected ? "exchanging '" : "comparing '") + words.name + "'");
    expect_present(collective_, [&](const Bye& bye) { return bye.agrees < number; });
    if (options_.rank == 0) {
      hear(0, epoch_, std::move(words));
    } else {
      mesh_.queue(0, to_frame(words, epoch_));
    }
    send_queued();
    changed_.wait(lock, [&] { return collectives_.has_verdict() || phase_ == Phase::kFailed; });
    if (!collectives_.has_verdict()) throw_failure(lock, "");
    Verdict verdict = collectives_.end();
    if (!verdict.text.empty()) throw Disagreement(verdict.text);
    return std::move(verdict.values);
  }

  enum class Phase {
    kRunning,
    kFailing,  // something failed; what is thrown is not decided
    kFailed,   // record_ is
  };

  // --- The thread. Without a lock of its own, unless it says so.

  void run() {
    try {
      while (turn()) {
      }
    } catch (const std::exception& error) {
      // Out of memory, or of files. The others see that the connections close.
      std::lock_guard<std::mutex> lock(mutex_);
      mesh_.close_all();
      Fault fault;
      fault.rank = options_.rank;
      fault.host = options_.host;
      fault.text = std::string("its connection to the others failed: ") + error.what();
      is_fenced_ = true;
      if (phase_ != Phase::kFailed) decide({std::move(fault)});
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
    bool must_cancel = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      uint64_t woken = 0;
      while (::read(wake_.get(), &woken, sizeof woken) > 0) {
      }
      const Time now = Clock::now();
      excuse_silence(now);
      for (const MeshEvent& event : mesh_.read(now)) take(event, now);
      beat(now);
      look_for_silence(now);
      give_up_collectives(now);
      if (phase_ == Phase::kFailing && now >= time_to_decide()) decide(collector_.sorted());
      must_cancel = must_cancel_;
    }
    // First this process's own work is stopped, then the others are told.
    if (must_cancel) cancel_if_asked();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tell_faults(Clock::now());
      mesh_.flush();
    }
    changed_.notify_all();
    return true;
  }

  void wake() {
    const uint64_t one = 1;
    // It fails only if it has been woken 2^64 times.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  std::vector<pollfd> descriptors() const {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    mesh_.append_descriptors(polled);
    return polled;
  }

  int milliseconds_to_wait() const {
    Time next = std::min(next_beat_, mesh_.next_time());
    if (phase_ == Phase::kFailing) next = std::min(next, time_to_decide());
    const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, beat_.count()));
  }

  // --- What follows needs mutex_.

  const Peer& peer_of(int64_t rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  Peer& peer_of(int64_t rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // This thread did not listen for a while (the process was stopped, the machine overloaded): that
  // is nobody else's silence.
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

  // What is queued, at once: rank 0 may go on, and end, as soon as it has decided, and the others
  // shall have its verdict then. It also saves waking the thread, unless there is more to do.
  void send_queued() {
    mesh_.flush();
    bool all = phase_ == Phase::kRunning;
    for (int64_t rank = 0; rank < options_.size; ++rank) all = all && !mesh_.has_unwritten(rank);
    if (!all) wake();
  }

  // A rank that has connected has missed what the others were told.
  void catch_up(int64_t rank) {
    if (phase_ == Phase::kFailing) {
      for (const Fault& fault : collector_.sorted()) {
        mesh_.queue(rank, to_frame(FaultMessage{fault, {}}, epoch_));
      }
    }
    if (phase_ == Phase::kFailed) mesh_.queue(rank, to_frame(record_, epoch_));
  }

  // A rank can take part in nothing any more. If it has said that it leaves, whoever needs it
  // knows.
  void lose(int64_t rank, FaultKind kind, const std::string& text, Time now) {
    Peer& peer = peer_of(rank);
    if (peer.bye || peer.loss) return;
    peer.loss = Fault{kind, rank, mesh_.host(rank), -1, -1, "", text};
    note(*peer.loss, now, /*tell=*/true);
  }

  void note(Fault fault, Time when, bool tell) {
    if (phase_ == Phase::kFailed || !collector_.add(fault, when)) return;
    if (phase_ == Phase::kRunning) {
      phase_ = Phase::kFailing;
      failing_since_ = Clock::now();
      must_cancel_ = true;
      failed_.store(true, std::memory_order_release);
    }
    if (tell) untold_.emplace_back(std::move(fault), when);
  }

  // The lowest rank decides. Each that cannot be reached, or does not, leaves it to the next.
  Time time_to_decide() const {
    int64_t before = 0;
    for (int64_t rank = 0; rank < options_.rank; ++rank) {
      if (mesh_.is_connected(rank) && peer_of(rank).is_needed()) ++before;
    }
    return failing_since_ + kWindow + before * kNextDecides;
  }

  void decide(std::vector<Fault> record) {
    if (phase_ == Phase::kRunning) must_cancel_ = true;
    phase_ = Phase::kFailed;
    failed_.store(true, std::memory_order_release);
    record_ = std::move(record);
    untold_.clear();
    for (const Fault& fault : record_) {
      if (fault.kind == FaultKind::kException) continue;
      if (fault.rank == options_.rank) {
        is_fenced_ = true;  // the others go on without this rank, or not at all
      } else if (!peer_of(fault.rank).loss) {
        peer_of(fault.rank).loss = fault;
      }
    }
    // All that are connected pass it on: the first to decide may not have reached everybody.
    mesh_.queue_for_all(to_frame(record_, epoch_));
  }

  void tell_faults(Time now) {
    for (auto& [fault, when] : untold_) {
      const auto age = std::chrono::duration_cast<std::chrono::microseconds>(now - when);
      mesh_.queue_for_all(to_frame(FaultMessage{fault, age}, epoch_));
    }
    untold_.clear();
  }

  void beat(Time now) {
    if (now < next_beat_) return;
    next_beat_ = now + beat_;
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      // Whoever does not read what there is learns nothing from more.
      if (mesh_.has_unwritten(rank)) continue;
      mesh_.queue(rank, to_frame(MessageType::kBeat, epoch_));
    }
  }

  void look_for_silence(Time now) {
    const auto is_silent = [&](int64_t rank, Milliseconds limit) {
      return mesh_.is_connected(rank) && peer_of(rank).is_needed() &&
             now - peer_of(rank).last_heard > limit;
    };
    bool any = false;
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      any = any || is_silent(rank, options_.silence_limit);
    }
    if (!any) return;
    // Those behind the same cut, whose last beats came a little later.
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
      case MessageType::kFault:
      case MessageType::kRecord:
        if (frame.epoch == epoch_ + 1 && phase_ == Phase::kFailed) {
          // It has heard that all are ready for the next epoch, and has failed again already.
          early_.emplace_back(rank, frame);
        } else if (frame.epoch == epoch_) {
          take_failure(frame, now);
        }
        return;
      case MessageType::kAgree:
        if (options_.rank != 0) throw DamagedMessage("only rank 0 compares");
        return hear(rank, frame.epoch, to_agree(frame.body));
      case MessageType::kVerdict:
        if (rank != 0) throw DamagedMessage("only rank 0 compares");
        return collectives_.know(frame.epoch, to_verdict(frame.body, options_.size));
      case MessageType::kNext:
        peer.next_epoch = std::max(peer.next_epoch, frame.epoch);
        return;
      case MessageType::kBye:
        peer.bye = to_bye(frame.body);
        peer.bye_epoch = frame.epoch;
        mesh_.queue(rank, to_frame(MessageType::kByeHeard, epoch_));
        if (is_in_call_) {
          expect_present("call " + std::to_string(calls_done_ + 1),
                         [&](const Bye& bye) { return bye.calls <= calls_done_; });
        }
        if (collectives_.is_waiting()) {
          const uint64_t number = collectives_.begun();
          expect_present(collective_, [&](const Bye& bye) { return bye.agrees < number; });
        }
        if (phase_ == Phase::kFailed && peer.next_epoch <= epoch_) {
          note_left(rank, "the next epoch");
        }
        return;
      case MessageType::kByeHeard:
        peer.bye_heard = true;
        return;
      case MessageType::kHello:
      case MessageType::kWelcome:
        break;
    }
    throw DamagedMessage("there is no message of type " + std::to_string(frame.type));
  }

  void take_failure(const Frame& frame, Time now) {
    if (frame.type == static_cast<uint8_t>(MessageType::kFault)) {
      FaultMessage message = to_fault(frame.body, options_.size);
      note(std::move(message.fault), now - message.age, /*tell=*/false);
    } else {
      std::vector<Fault> record = to_record(frame.body, options_.size);
      if (phase_ != Phase::kFailed) decide(std::move(record));
    }
  }

  // Those that have left before `what` have failed.
  template <typename LeftBefore>
  void expect_present(const std::string& what, LeftBefore left_before) {
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      const Peer& peer = peer_of(rank);
      if (!peer.bye || peer.bye_epoch > epoch_) continue;
      if (peer.bye_epoch < epoch_ || left_before(*peer.bye)) note_left(rank, what);
    }
  }

  void note_left(int64_t rank, const std::string& what) {
    Peer& peer = peer_of(rank);
    if (peer.loss) return;
    peer.loss = Fault{
        FaultKind::kLeft,
        rank,
        mesh_.host(rank),
        -1,
        -1,
        "",
        "it ended after " + std::to_string(peer.bye->calls) + " calls, but is needed for " + what};
    note(*peer.loss, Clock::now(), /*tell=*/true);
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

  void announce(Collectives::Decision decision) {
    mesh_.queue_for_all(to_frame(decision.verdict, decision.epoch));
    collectives_.know(decision.epoch, std::move(decision.verdict));
  }

  static bool names_a_loss(const std::vector<Fault>& record) {
    return std::any_of(record.begin(), record.end(),
                       [](const Fault& fault) { return fault.kind != FaultKind::kException; });
  }

  // Of those that were lost after the record. Who leaves because another one ended is not the
  // cause.
  std::vector<Fault> losses() const {
    FaultCollector ended;
    FaultCollector left;
    for (const Peer& peer : peers_) {
      if (!peer.loss) continue;
      (peer.loss->kind == FaultKind::kLeft ? left : ended).add(*peer.loss, {});
    }
    return ended.empty() ? left.sorted() : ended.sorted();
  }

  bool will_not_be_ready(uint32_t target) const {
    return std::any_of(peers_.begin(), peers_.end(),
                       [&](const Peer& peer) { return peer.loss && peer.next_epoch < target; });
  }

  std::vector<int64_t> unready(uint32_t target) const {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < options_.size; ++rank) {
      if (rank != options_.rank && peer_of(rank).next_epoch < target) ranks.push_back(rank);
    }
    return ranks;
  }

  void begin_epoch(uint32_t epoch) {
    epoch_ = epoch;
    phase_ = Phase::kRunning;
    collector_.clear();
    untold_.clear();
    record_.clear();
    calls_done_ = 0;
    collectives_.begin_epoch(epoch);
    {
      std::lock_guard<std::mutex> lock(watch_mutex_);
      is_cancelled_ = false;
    }
    must_cancel_ = false;
    failed_.store(false, std::memory_order_release);
    std::vector<std::pair<int64_t, Frame>> early;
    early.swap(early_);
    for (const auto& [rank, frame] : early) take(rank, frame, Clock::now());
    // Who has been lost since it was ready.
    for (const Peer& peer : peers_) {
      if (peer.loss) note(*peer.loss, Clock::now(), /*tell=*/true);
    }
    wake();
  }

  void wait_for_record(std::unique_lock<std::mutex>& lock) {
    changed_.wait_for(lock, kDecisionLimit, [&] { return phase_ == Phase::kFailed; });
    if (phase_ != Phase::kFailed) decide(collector_.sorted());
  }

  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock, const std::string& symptom) {
    changed_.wait_for(lock, kCauseLimit, [&] { return phase_ != Phase::kRunning; });
    if (phase_ == Phase::kRunning) {
      lock.unlock();
      Fault fault;
      fault.text = symptom;
      report(std::move(fault));
      lock.lock();
    }
    wait_for_record(lock);
    throw DistributedFailure(record_);
  }

  // --- What is watched: watch_mutex_.

  void cancel_if_asked() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!std::exchange(must_cancel_, false)) return;
    }
    cancel_watched();
  }

  void cancel_watched() {
    std::lock_guard<std::mutex> lock(watch_mutex_);
    if (std::exchange(is_cancelled_, true)) return;
    for (const std::function<void()>& cancel : watched_) cancel();
  }

  ControlOptions options_;
  const Milliseconds beat_;
  const pid_t process_ = getpid();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Mesh mesh_;
  std::vector<Peer> peers_;
  Socket wake_;
  bool stop_ = false;
  Time last_turn_{};
  Time next_beat_{};

  uint32_t epoch_ = 0;
  Phase phase_ = Phase::kRunning;
  std::atomic<bool> failed_{false};  // phase_ is not kRunning
  Time failing_since_{};
  FaultCollector collector_;
  std::vector<std::pair<Fault, Time>> untold_;
  std::vector<Fault> record_;
  bool is_fenced_ = false;
  bool must_cancel_ = false;
  std::vector<std::pair<int64_t, Frame>> early_;  // of the next epoch

  uint64_t calls_done_ = 0;
  bool is_in_call_ = false;
  Collectives collectives_;
  std::string collective_;  // what the last of them does, for messages

  std::mutex watch_mutex_;
  std::list<std::function<void()>> watched_;
  bool is_cancelled_ = false;

  std::thread thread_;  // last: it uses all of the above
};

Control::Control(ControlOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Control::~Control() = default;

int64_t Control::rank() const { return impl_->options().rank; }
int64_t Control::size() const { return impl_->options().size; }
void Control::add_peer(int64_t rank, const Endpoint& endpoint) { impl_->add_peer(rank, endpoint); }
void Control::wait_until_connected(Time deadline) { impl_->wait_until_connected(deadline); }
std::string Control::host_of(int64_t rank) const { return impl_->host_of(rank); }
void Control::check() {
  if (impl_->failed()) impl_->throw_failure("");
}
bool Control::failed() const { return impl_->failed(); }
void Control::report(Fault fault) { impl_->report(std::move(fault)); }
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
  impl_->report(std::move(fault));
}
void Control::throw_failure(const std::string& symptom) { impl_->throw_failure(symptom); }
void Control::agree(const std::string& name, const std::string& value) {
  impl_->agree(name, value);
}
std::vector<std::string> Control::exchange(const std::string& name, const std::string& value,
                                           bool is_patient) {
  return impl_->exchange(name, value, is_patient);
}
int64_t Control::epoch() const { return impl_->epoch(); }
void Control::next_epoch() { impl_->next_epoch(); }

Control::Watch::Watch(Control& control, std::function<void()> cancel) : control_(control) {
  control_.impl_->watch(&place_, std::move(cancel));
}
Control::Watch::~Watch() { control_.impl_->unwatch(place_); }

Control::Call::Call(Control& control) : control_(control) { control_.impl_->begin_call(); }
Control::Call::~Call() { control_.impl_->end_call(done_); }

}  // namespace gpipe::distributed
