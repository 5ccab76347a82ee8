#include "gpipe/distributed/meet/session.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/distributed/meet/quiet_log.h"
#include "gpipe/distributed/sockets/token.h"
#include "gpipe/runtime/bytes.h"
#include "machine/cores.h"

namespace gpipe {
namespace machine {
static auto fields(Quota& quota) { return std::tie(quota.group, quota.cores); }
}  // namespace machine

namespace distributed {

static auto fields(Endpoint& endpoint) { return std::tie(endpoint.address, endpoint.port); }
static auto fields(CoreSource& source) {
  return std::tie(source.host, source.cores, source.quotas);
}

namespace {

using Time = std::chrono::steady_clock::time_point;
using Milliseconds = std::chrono::milliseconds;

// How long a group may take to connect. It is short, because all ranks exist and wait when a group
// begins to connect. It is longer than the limit of silence, so that a rank that hangs is noticed
// by its silence and is not taken for one that threw.
Milliseconds group_limit(const SessionOptions& options) {
  const Milliseconds silence =
      std::min<Milliseconds>(options.silence_limit, std::chrono::hours(24));
  return std::max<Milliseconds>(std::chrono::seconds(20), silence + std::chrono::seconds(5));
}
// How much longer than its limit a rank waits for the store's answer to a question that it asked in
// time.
constexpr std::chrono::seconds kAnswerLimit{1};

Milliseconds left_until(Time end) {
  const auto left =
      std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
  return std::max(left, Milliseconds(1));
}

// The pause between two questions to the store, for a rank that waits for another rank. Such a rank
// asks again and again, because a wait inside the store does not end if a rank fails, nor does it
// end in time if the network is cut.
class Pause {
 public:
  void operator()() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, Milliseconds(50));
  }

 private:
  Milliseconds pause_{1};
};

// Keys of the store: how many processes with this rank have come, and what rank 0 answers the n-th
// of them.
std::string coming_key(int64_t rank) { return "come/" + std::to_string(rank); }
std::string claim_key(int64_t rank) { return "claim/" + std::to_string(rank); }
std::string token_key(int64_t rank, int64_t n) {
  return "token/" + std::to_string(rank) + "/" + std::to_string(n);
}

// The sessions of a process have different numbers, so they do not find each other's keys. A
// session that did not connect takes no number: other ranks may have made more attempts, or fewer.
std::atomic<int64_t> sessions_of_this_process{0};

// Whether the rank's process ended or is silent. One that threw or left lives, and may keep its
// store for another session.
bool lost(int64_t rank, const DistributedFailure& failure) {
  return std::any_of(failure.faults().begin(), failure.faults().end(), [&](const Fault& fault) {
    return fault.rank == rank &&
           (fault.kind == FaultKind::kDeath || fault.kind == FaultKind::kSilence);
  });
}

}  // namespace

std::unique_ptr<Session> Session::connect(const Environment& environment,
                                          const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session(environment, options));
  try {
    session->meet();
    session->compare_builds();
    session->tell_of_too_many_threads();
    session->options_.check = nullptr;  // what it refers to may not outlive this call
  } catch (const DistributedFailure& failure) {
    if (!lost(0, failure)) session->withdraw();  // the store of a lost rank 0 would not answer
    throw;
  } catch (const std::exception&) {
    session->withdraw();
    throw;
  }
  if (session->size() > 1 && options.name.empty()) ++sessions_of_this_process;
  return session;
}

// Destroys control_ first, which tells the other ranks that this one leaves: the destructor of
// detached_calls_ may take a moment.
Session::~Session() { control_.reset(); }

void Session::meet() {
  const Time end = std::chrono::steady_clock::now() + options_.rendezvous_limit;
  addresses_ = choose_addresses(environment_, network_of_this_machine());
  ControlOptions control;
  control.rank = rank();
  control.size = size();
  control.host = host_name();
  control.silence_limit = options_.silence_limit;
  control.call_limit = options_.call_limit;
  if (size() == 1) {
    control_ = std::make_unique<Control>(std::move(control));
    return;
  }
  if (rank() == 0 && options_.announce) {
    const Endpoint master{addresses_.master, static_cast<int>(environment_.master_port)};
    std::clog << "gpipe: " + announcement(environment_, to_text(master), addresses_.own) + "\n"
              << std::flush;
  }
  const std::string name =
      options_.name.empty() ? std::to_string(sessions_of_this_process) : options_.name;
  const std::string prefix = "gpipe/" + name + "/";
  int port = static_cast<int>(environment_.master_port);
  if (rank() == 0 && !environment_.store_is_the_launchers) {
    serve(port, prefix, end);
  }
  token_ = find_token(port, prefix, end);
  control.token = token_;
  meeting_ = std::exchange(store_, store_->under(token_ + "/"));
  store_prefix_ += token_ + "/";
  Endpoint own{addresses_.own, 0};
  try {
    control.listener = listen_on(own.address, &own.port);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string(error.what()) +
                             ". Each rank listens on the interface that GPIPE_INTERFACE names, or "
                             "on the one that reaches rank 0: " +
                             to_text(environment_));
  }
  control_ = std::make_unique<Control>(std::move(control));
  try {
    claim_rank(end);
    from_store<bool>(
        [store = store_, key = "rank/" + std::to_string(rank()), own] {
          store->set(key, internal::to_bytes(own));
          return true;
        },
        end);
    find_peers(end);
  } catch (const StoreIsGone& error) {
    // The process that held the store is gone. If it was a rank, this rank's connection to it or
    // another rank will show that it failed. throw_failure() waits for this, and reports the lost
    // store only if nothing else becomes known.
    control_->throw_failure(store_name() + " is gone: " + error.what());
  } catch (const std::exception&) {
    // Ranks whose limit ends later must learn which rank did not come, not that this rank has left.
    control_->report_current_exception();
    throw;
  }
}

// A launcher's store still has what the processes of earlier starts wrote, and nothing tells these
// starts apart: torchrun counts the failures of each machine's own processes, and starts all again
// without counting where a machine comes or leaves. So a rank that comes takes the next number of
// those that its rank has had in this store, and rank 0 answers each number. Everything else is
// written under rank 0's token.
std::string Session::find_token(int port, const std::string& prefix, Time end) {
  Pause pause;
  while (true) {
    if (!store_) find_store(port, prefix, end);
    try {
      coming_ = from_store<int64_t>(
          [store = store_, key = coming_key(rank())] { return store->add(key, 1); }, end);
      if (coming_ > 1 && !environment_.store_is_the_launchers) refuse_rank();
      return rank() == 0 ? make_token() : wait_for_token(end);
    } catch (const StoreIsGone& error) {
      // The store that is gone may have been that of the previous session, which rank 0 was about
      // to end. So the rank looks for the store once more.
      store_.reset();
      if (std::chrono::steady_clock::now() > end) {
        throw std::runtime_error("rank " + std::to_string(rank()) + " lost " + store_name() + ": " +
                                 error.what());
      }
      pause();
    }
  }
}

std::string Session::wait_for_token(Time end) {
  Pause pause;
  while (true) {
    auto token = from_store<std::optional<std::string>>(
        [store = store_, key = token_key(rank(), coming_)] { return store->get(key); }, end);
    if (token) return *token;
    if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error("rank 0 did not come within " +
                               std::to_string(options_.rendezvous_limit.count()) + " ms" +
                               hint_of_a_second());
    }
    pause();
  }
}

// On rank 0: answers the processes with rank `peer` that have come since the last call. Processes
// of an earlier start, which are gone, get an answer, too.
void Session::give_token(int64_t peer, Time end) {
  const auto come = from_store<int64_t>(
      [store = meeting_, key = coming_key(peer)] { return store->add(key, 0); }, end);
  for (int64_t& given = tokens_given_[peer]; given < come; ++given) {
    from_store<bool>(
        [store = meeting_, key = token_key(peer, given + 1), token = token_] {
          store->set(key, token);
          return true;
        },
        end);
  }
}

std::string Session::hint_of_a_second() const {
  if (coming_ == 1) return "";
  return "; another process has come as rank " + std::to_string(rank()) +
         " to this store before: unless that was an earlier start, give each process a rank of "
         "its own. This one is " +
         to_text(environment_);
}

void Session::refuse_rank() const {
  throw std::runtime_error("another process is rank " + std::to_string(rank()) +
                           " already: give each a rank of its own, from 0 to " +
                           std::to_string(size() - 1) + ". This one is " + to_text(environment_));
}

// Throws if another process has the same rank as this one. Otherwise each of the two would get a
// part of the messages to that rank.
void Session::claim_rank(Time end) {
  const auto claims = from_store<int64_t>(
      [store = store_, key = claim_key(rank())] { return store->add(key, 1); }, end);
  has_claimed_ = true;
  if (claims > 1) refuse_rank();
}

// Takes back what a rank that does not connect has counted in rank 0's store. Otherwise its next
// attempt would be taken for a second process with its rank. A launcher's store counts attempts.
void Session::withdraw() {
  if (!store_ || store_is_silent_ || environment_.store_is_the_launchers) return;
  auto done = detached_calls_.begin(std::function<bool()>(
      [store = store_, base = meeting_ ? meeting_ : store_, come = coming_key(rank()),
       claim = claim_key(rank()), has_come = coming_ > 0, has_claimed = has_claimed_] {
        if (has_claimed) store->add(claim, -1);
        if (has_come) base->add(come, -1);
        return true;
      }));
  (void)done.wait_for(kAnswerLimit);
}

template <typename Result>
Result Session::from_store(std::function<Result()> call, Time end) {
  const QuietLog quiet;
  std::future<Result> result = detached_calls_.begin(std::move(call));
  while (result.wait_for(Milliseconds(1)) != std::future_status::ready) {
    if (control_) control_->check();
    if (options_.check) options_.check();
    if (std::chrono::steady_clock::now() > end + kAnswerLimit) {
      store_is_silent_ = true;
      throw std::runtime_error(
          "rank " + std::to_string(rank()) + " got no answer from " + store_name() +
          " in time: its process has ended or is stopped, or the network is cut");
    }
  }
  return result.get();
}

std::string Session::store_name() const {
  return (environment_.store_is_the_launchers ? "the launcher's store" : "the store of rank 0") +
         (" at " + to_text(Endpoint{addresses_.master, store_port_}));
}

void Session::serve(int port, const std::string& prefix, Time end) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, std::weak_ptr<Store>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<Store>& known = all[{addresses_.master, port}];
  served_ = known.lock();
  if (served_) return find_store(port, prefix, end);
  Socket listener;
  int bound = port;
  try {
    listener = listen_on(addresses_.master, &bound);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string(error.what()) +
                             ". Rank 0 must be able to listen there; where another program does, "
                             "give all ranks another MASTER_PORT; where another process is rank 0, "
                             "too, give this one a rank of its own: " +
                             to_text(environment_));
  }
  served_ = serve_store(std::move(listener), {addresses_.master, bound}, prefix);
  known = served_;
  find_store(bound, prefix, end);
}

void Session::find_store(int port, const std::string& prefix, Time end) {
  store_port_ = port;
  store_prefix_ = prefix;
  try {
    store_ = from_store<std::shared_ptr<Store>>(
        [address = addresses_.master, port, prefix, limit = left_until(end)] {
          return connect_store(address, port, prefix, limit);
        },
        end);
  } catch (const DistributedFailure&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error("rank " + std::to_string(rank()) + " found no store at " +
                             to_text(Endpoint{addresses_.master, port}) + ": " + error.what() +
                             "; rank 0 has it: was rank 0 started, with this address and port?");
  }
}

// Reads from the store where the lower ranks listen, and connects to them. Rank 0 connects to no
// rank; it gives the others its token until all have written where they listen.
void Session::find_peers(Time end) {
  std::vector<int64_t> missing;
  for (int64_t peer = 0; peer < size(); ++peer) {
    if (rank() == 0 ? peer > 0 : peer < rank()) missing.push_back(peer);
  }
  Pause pause;
  while (!missing.empty()) {
    if (rank() == 0) check_alone(end);
    std::vector<int64_t> still;
    for (const int64_t peer : missing) {
      if (rank() == 0) give_token(peer, end);
      const auto bytes = from_store<std::optional<std::string>>(
          [store = store_, key = "rank/" + std::to_string(peer)] { return store->get(key); }, end);
      if (!bytes) {
        still.push_back(peer);
      } else if (peer < rank()) {
        control_->add_peer(peer, internal::from_bytes<Endpoint>(*bytes, "an address"));
      }
    }
    missing = std::move(still);
    control_->check();
    if (missing.empty() || std::chrono::steady_clock::now() > end) break;
    pause();
  }
  try {
    wait_until_connected(end);
  } catch (const DistributedFailure&) {
    throw;
  } catch (const std::runtime_error& error) {
    if (options_.check) throw;  // the exception stays as it is, because the caller acts by its type
    throw std::runtime_error(error.what() + hint_of_a_second());
  }
}

// If the options have a `check`, calls it from time to time, because it throws if waiting is in
// vain.
void Session::wait_until_connected(Time end) {
  constexpr Milliseconds kLook{20};
  while (options_.check) {
    options_.check();
    const Time next = std::chrono::steady_clock::now() + kLook;
    if (next >= end) break;
    try {
      return control_->wait_until_connected(next);
    } catch (const DistributedFailure&) {
      throw;
    } catch (const std::runtime_error&) {  // not connected yet
    }
  }
  control_->wait_until_connected(end);
}

// On rank 0: throws if another process has come as rank 0. claim_rank() would not notice that,
// because each rank 0 claims its rank under a token of its own.
void Session::check_alone(Time end) {
  const auto come = from_store<int64_t>(
      [store = meeting_, key = coming_key(0)] { return store->add(key, 0); }, end);
  if (come != coming_) refuse_rank();
}

void Session::compare_builds() {
  const int64_t threads =
      options_.threads_per_operator > 0 ? options_.threads_per_operator : at::get_num_threads();
  control_->agree(
      "the builds and settings of the ranks",
      internal::fields_text(
          {{"LibTorch's version", TORCH_VERSION},
           {"what LibTorch's kernels use of the CPU (ATEN_CPU_CAPABILITY)",
            at::get_cpu_capability()},
           {"LibTorch's build (at::show_config())", at::show_config()},
           {"the number of threads per operator (OMP_NUM_THREADS or at::set_num_threads())",
            std::to_string(threads)},
           {"the way between the devices of processes (GPIPE_DEVICE_LINKS)",
            environment_.device_links}}));
}

// Rank 0 warns for all ranks, after all ranks have exchanged their cores and quotas.
void Session::tell_of_too_many_threads() {
  if (size() == 1) return;
  const CoreSource own{host_name(), machine::machine_cores(), machine::core_quotas()};
  const std::string name = "the cores of each rank";
  std::vector<CoreSource> sources;
  for (const std::string& bytes : control_->exchange(name, internal::to_bytes(own))) {
    sources.push_back(internal::from_bytes<CoreSource>(bytes, name));
  }
  if (rank() != 0 || !options_.announce) return;
  const std::string crowd =
      too_many_threads(sources, at::get_num_threads(), std::getenv("OMP_NUM_THREADS") != nullptr);
  if (!crowd.empty()) std::clog << "gpipe: " + crowd + "\n" << std::flush;
}

std::unique_ptr<Store> Session::store() {
  if (!store_) throw std::logic_error("a session of one process has no store");
  return store_->clone();
}

std::vector<std::string> Session::exchange_among(const std::vector<int64_t>& ranks,
                                                 const std::string& name,
                                                 const std::string& value) {
  if (!store_) throw std::logic_error("a session of one process has no rank to exchange with");
  const Time end = std::chrono::steady_clock::now() + options_.call_limit;
  const std::string key = "among/" + name + "/";
  std::vector<std::string> values;
  try {
    from_store<bool>(
        [store = store_, own = key + std::to_string(rank()), value] {
          store->set(own, value);
          return true;
        },
        end);
    for (const int64_t other : ranks) {
      Pause pause;
      while (true) {
        auto said = from_store<std::optional<std::string>>(
            [store = store_, theirs = key + std::to_string(other)] { return store->get(theirs); },
            end);
        if (said) {
          values.push_back(std::move(*said));
          break;
        }
        control_->check();
        if (std::chrono::steady_clock::now() > end) {
          throw std::runtime_error("rank " + std::to_string(other) + " did not come to " + name +
                                   " in time");
        }
        pause();
      }
    }
  } catch (const StoreIsGone& error) {
    // A store of rank 0 dies with it, and this rank may notice that before its control thread does.
    control_->throw_failure(store_name() + " is gone: " + error.what());
  }
  return values;
}

std::unique_ptr<Group> Session::connect_group(const std::string& name) {
  if (!store_) throw std::logic_error("a session of one process has no group");
  control_->agree("connecting " + name, "");
  // If a failure interrupted the connecting of a group, some ranks may not have counted that group.
  // So all ranks count anew in each epoch.
  if (const int64_t epoch = control_->epoch(); groups_epoch_ != epoch) {
    groups_epoch_ = epoch;
    groups_ = 0;
  }
  // Connecting would end only when all ranks have come, but a rank may fail meanwhile. Then it is
  // given up.
  const auto is_given_up = std::make_shared<std::atomic<bool>>(false);
  const QuietLog quiet;
  std::future<std::unique_ptr<Group>> group =
      detached_calls_.begin([host = addresses_.master, port = store_port_, prefix = store_prefix_,
                             unique = "group/" + std::to_string(groups_epoch_) + "/" +
                                      std::to_string(groups_++) + "/" + name,
                             rank = rank(), size = size(), address = addresses_.own,
                             limit = group_limit(options_), is_given_up] {
        const auto store = connect_store(host, port, prefix, limit);
        return distributed::connect_group(*store, unique, rank, size, address, limit,
                                          [is_given_up] { return is_given_up->load(); });
      });
  while (group.wait_for(Milliseconds(1)) != std::future_status::ready) {
    if (!control_->failed()) continue;
    *is_given_up = true;
    control_->throw_failure("connecting the group '" + name + "' was given up");
  }
  try {
    return group.get();
  } catch (const std::exception& error) {
    control_->throw_failure("connecting the group '" + name + "' failed: " + error.what());
  }
}

}  // namespace distributed
}  // namespace gpipe
