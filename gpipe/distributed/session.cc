#include "gpipe/distributed/session.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <sys/random.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/distributed/bytes.h"

namespace gpipe::distributed {
namespace {

using Time = std::chrono::steady_clock::time_point;
using Milliseconds = std::chrono::milliseconds;

// All ranks are there and wait when a group begins to connect.
constexpr std::chrono::seconds kGroupLimit{20};

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

// Who waits for another process asks the store again and again: a wait in the store ends neither if
// somebody fails nor, over a cut line, in time.
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
  return session;
}

Session::~Session() {
  for (std::thread& thread : given_up_) thread.join();
}

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
    std::clog << "gpipe: " + to_text(environment_) + "; listening on " + addresses_.own + "\n"
              << std::flush;
  }
  // A launcher's store has what the sessions before wrote.
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
    store_->set("token", control.token);
  } else {
    Pause pause;
    while (control.token.empty()) {
      find_store(port, prefix, end);
      try {
        control.token = get_from_rank_0("token", end);
      } catch (const c10::Error& error) {
        // It may have been the store of the session before, which rank 0 was about to end.
        if (std::chrono::steady_clock::now() > end) throw;
        pause();
      }
    }
  }
  Endpoint own{addresses_.own, 0};
  control.listener = listen_on(own.address, &own.port);
  control_ = std::make_unique<Control>(std::move(control));
  store_->set("rank/" + std::to_string(rank()), to_bytes(own));
  find_peers(end);
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
                             "give all ranks another MASTER_PORT: " +
                             to_text(environment_));
  }
  served_ = serve_store(std::move(listener), {addresses_.master, bound}, prefix);
  known = served_;
  store_ = served_->clone();
}

void Session::find_store(int port, const std::string& prefix, Time end) {
  try {
    store_ = connect_store(addresses_.master, port, prefix, left_until(end));
  } catch (const std::exception& error) {
    throw std::runtime_error("rank " + std::to_string(rank()) + " found no store at " +
                             to_text(Endpoint{addresses_.master, port}) + ": " + error.what());
  }
}

std::string Session::get_from_rank_0(const std::string& key, Time end) {
  Pause pause;
  while (true) {
    if (auto value = store_->get(key)) return *value;
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
      if (const auto bytes = store_->get("rank/" + std::to_string(peer))) {
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
}

std::unique_ptr<Store> Session::store() {
  if (!store_) throw std::logic_error("a session of one process has no store");
  return store_->clone();
}

std::unique_ptr<Group> Session::connect_group(const std::string& name) {
  if (!store_) throw std::logic_error("a session of one process has no group");
  control_->agree("connecting " + name, "");
  // On a thread of its own: it ends only when all have come, and somebody may fail meanwhile.
  std::promise<std::unique_ptr<Group>> promise;
  std::future<std::unique_ptr<Group>> group = promise.get_future();
  const std::string unique = "group/" + std::to_string(groups_++) + "/" + name;
  std::thread thread([store = std::shared_ptr<Store>(store()), unique, rank = rank(), size = size(),
                      address = addresses_.own, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(
          distributed::connect_group(*store, unique, rank, size, address, kGroupLimit));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  });
  while (group.wait_for(Milliseconds(1)) != std::future_status::ready) {
    if (!control_->failed()) continue;
    given_up_.push_back(std::move(thread));
    control_->throw_failure("");
  }
  thread.join();
  try {
    return group.get();
  } catch (const std::exception& error) {
    control_->throw_failure("connecting the group '" + name + "' failed: " + error.what());
  }
}

}  // namespace gpipe::distributed
