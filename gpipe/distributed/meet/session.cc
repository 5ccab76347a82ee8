#include "gpipe/distributed/meet/session.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <sys/random.h>
#include <torch/version.h>
#include <unistd.h>

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
#include <utility>
#include <vector>

#include "gpipe/distributed/sockets/bytes.h"
#include "machine/cores.h"

namespace gpipe::distributed {
namespace {

using Time = std::chrono::steady_clock::time_point;
using Milliseconds = std::chrono::milliseconds;

// Short, because all ranks exist and wait when a group begins to connect.
constexpr std::chrono::seconds kGroupLimit{20};
// How long a rank still waits for the store's answer after its limit: it asked in time.
constexpr std::chrono::seconds kAnswerLimit{1};

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string make_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    throw std::runtime_error("the system gives no random numbers");
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string token;
  for (const unsigned char byte : bytes) token += {kDigits[byte / 16], kDigits[byte % 16]};
  return token;
}

Milliseconds left_until(Time end) {
  const auto left =
      std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
  return std::max(left, Milliseconds(1));
}

// The pause between two questions to the store, for a rank that waits for another one. It asks
// again and again, because a wait inside the store does not end if a rank fails, nor, if the
// network is cut, in time.
class Pause {
 public:
  void operator()() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, Milliseconds(50));
  }

 private:
  Milliseconds pause_{1};
};

std::string to_bytes(const Endpoint& endpoint) {
  ByteWriter writer;
  writer.text(endpoint.address);
  writer.number(static_cast<int32_t>(endpoint.port));
  return writer.take();
}

Endpoint to_endpoint(const std::string& bytes) {
  ByteReader reader(bytes);
  Endpoint endpoint;
  endpoint.address = reader.text();
  endpoint.port = reader.number<int32_t>();
  reader.end();
  return endpoint;
}

}  // namespace

std::unique_ptr<Session> Session::connect(const Environment& environment,
                                          const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session(environment, options));
  session->meet();
  session->compare_builds();
  session->tell_of_too_many_threads();
  return session;
}

// Tells the other ranks first, because the destructor of errands_ may take a moment.
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
  // A launcher's store still has the keys of earlier sessions.
  static std::atomic<int64_t> sessions{0};
  const std::string prefix =
      "gpipe/" + std::to_string(environment_.restarts) + "/" + std::to_string(sessions++) + "/";
  int port = static_cast<int>(environment_.master_port);
  if (rank() == 0 && !environment_.store_is_the_launchers) {
    serve(port, prefix, end);
  }
  if (rank() == 0) {
    if (!store_) find_store(port, prefix, end);
    control.token = make_token();
    from_store<bool>(
        [store = store_, token = control.token] {
          store->set("token", token);
          return true;
        },
        end);
  } else {
    Pause pause;
    while (control.token.empty()) {
      find_store(port, prefix, end);
      try {
        control.token = get_from_rank_0("token", end);
      } catch (const StoreIsGone& error) {
        // It may have been the store of the previous session, which rank 0 was about to end.
        if (std::chrono::steady_clock::now() > end) {
          throw std::runtime_error("rank " + std::to_string(rank()) + " lost " + store_name() +
                                   ": " + error.what());
        }
        pause();
      }
    }
  }
  claim_rank(end);
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
    from_store<bool>(
        [store = store_, key = "rank/" + std::to_string(rank()), own] {
          store->set(key, to_bytes(own));
          return true;
        },
        end);
    find_peers(end);
  } catch (const StoreIsGone& error) {
    // The process with the store is gone. If it is a rank, this rank has a connection to it, or
    // other ranks know.
    control_->throw_failure(store_name() + " is gone: " + error.what());
  } catch (const std::exception&) {
    // Ranks whose limit ends later must learn which rank did not come, not that this rank has left.
    control_->report_current_exception();
    throw;
  }
}

// Two that are the same rank would each have a part of the others' messages.
void Session::claim_rank(Time end) {
  const auto claims = from_store<int64_t>(
      [store = store_, key = "claim/" + std::to_string(rank())] { return store->add(key, 1); },
      end);
  if (claims == 1) return;
  throw std::runtime_error("another process is rank " + std::to_string(rank()) +
                           " already: give each a rank of its own, from 0 to " +
                           std::to_string(size() - 1) + ". This one is " + to_text(environment_));
}

template <typename Result>
Result Session::from_store(std::function<Result()> call, Time end) {
  std::future<Result> result = errands_.begin(std::move(call));
  while (result.wait_for(Milliseconds(1)) != std::future_status::ready) {
    if (control_) control_->check();
    if (std::chrono::steady_clock::now() > end + kAnswerLimit) {
      throw std::runtime_error("rank " + std::to_string(rank()) + " got no answer from " +
                               store_name() +
                               " in time: its process is stopped, or the network is cut");
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

std::string Session::get_from_rank_0(const std::string& key, Time end) {
  Pause pause;
  while (true) {
    auto value = from_store<std::optional<std::string>>(
        [store = store_, key] { return store->get(key); }, end);
    if (value) return *value;
    if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error("rank 0 did not come within " +
                               std::to_string(options_.rendezvous_limit.count()) + " ms");
    }
    pause();
  }
}

void Session::find_peers(Time end) {
  std::vector<int64_t> missing;
  for (int64_t peer = 0; peer < rank(); ++peer) missing.push_back(peer);
  Pause pause;
  while (!missing.empty()) {
    std::vector<int64_t> still;
    for (const int64_t peer : missing) {
      const auto bytes = from_store<std::optional<std::string>>(
          [store = store_, key = "rank/" + std::to_string(peer)] { return store->get(key); }, end);
      if (bytes) {
        control_->add_peer(peer, to_endpoint(*bytes));
      } else {
        still.push_back(peer);
      }
    }
    missing = std::move(still);
    control_->check();
    if (missing.empty() || std::chrono::steady_clock::now() > end) break;
    pause();
  }
  control_->wait_until_connected(end);
}

void Session::compare_builds() {
  const int64_t threads =
      options_.threads_per_operator > 0 ? options_.threads_per_operator : at::get_num_threads();
  control_->agree("LibTorch's version", TORCH_VERSION);
  control_->agree("what LibTorch's kernels use of the CPU (ATEN_CPU_CAPABILITY)",
                  at::get_cpu_capability());
  control_->agree("LibTorch's build (at::show_config())", at::show_config());
  control_->agree("the number of threads per operator (OMP_NUM_THREADS or at::set_num_threads())",
                  std::to_string(threads));
  control_->agree("the way between the devices of processes (GPIPE_DEVICE_LINKS)",
                  environment_.device_links);
}

// Rank 0 tells of all: of the others' quotas nobody else knows.
void Session::tell_of_too_many_threads() {
  if (size() == 1) return;
  const bool has_quota = machine::core_quota().has_value();
  ByteWriter own;
  own.text(host_name());
  own.text(has_quota ? machine::quota_group() : "");
  own.number(machine::machine_cores());
  std::vector<CoreSource> sources;
  for (const std::string& bytes : control_->exchange("the cores of each rank", own.take())) {
    ByteReader reader(bytes);
    CoreSource source;
    source.host = reader.text();
    source.group = reader.text();
    source.cores = reader.number<int64_t>();
    sources.push_back(std::move(source));
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
  from_store<bool>(
      [store = store_, own = key + std::to_string(rank()), value] {
        store->set(own, value);
        return true;
      },
      end);
  std::vector<std::string> values;
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
  return values;
}

std::unique_ptr<Group> Session::connect_group(const std::string& name) {
  if (!store_) throw std::logic_error("a session of one process has no group");
  control_->agree("connecting " + name, "");
  // A rank may have missed a group that a failure interrupted, so the count begins anew.
  if (const int64_t epoch = control_->epoch(); groups_epoch_ != epoch) {
    groups_epoch_ = epoch;
    groups_ = 0;
  }
  // Connecting ends only when all ranks have come, and a rank may fail meanwhile.
  const auto is_given_up = std::make_shared<std::atomic<bool>>(false);
  std::future<std::unique_ptr<Group>> group =
      errands_.begin([host = addresses_.master, port = store_port_, prefix = store_prefix_,
                      unique = "group/" + std::to_string(groups_epoch_) + "/" +
                               std::to_string(groups_++) + "/" + name,
                      rank = rank(), size = size(), address = addresses_.own, is_given_up] {
        const auto store = connect_store(host, port, prefix, kGroupLimit);
        return distributed::connect_group(*store, unique, rank, size, address, kGroupLimit,
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

}  // namespace gpipe::distributed
