// Session: the processes of one run, connected: from what the launcher said to ranks that know of
// each other, watch each other and have the same build.
#ifndef GPIPE_DISTRIBUTED_MEET_SESSION_H_
#define GPIPE_DISTRIBUTED_MEET_SESSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/distributed/control/control.h"
#include "gpipe/distributed/meet/addresses.h"
#include "gpipe/distributed/meet/c10d.h"
#include "gpipe/distributed/meet/environment.h"
#include "gpipe/distributed/meet/errands.h"

namespace gpipe::distributed {

struct SessionOptions {
  // How long processes that have started wait for those that have not.
  std::chrono::milliseconds rendezvous_limit = std::chrono::minutes(5);
  // As in ControlOptions.
  std::chrono::milliseconds silence_limit = std::chrono::seconds(30);
  std::chrono::milliseconds call_limit = std::chrono::minutes(5);
  // How many threads an operator uses: with another number it may add up in another order. Compared
  // over all ranks. Default: what LibTorch has now.
  int64_t threads_per_operator = 0;
  // Rank 0 writes one line about what was recognised to the standard error.
  bool announce = true;
};

// Guarantees: all ports that it opens are on one address: that of the chosen interface, loopback if
// all ranks are on one machine. (torchrun's own store is not: torchrun opens it on all.)
//
// Thread-safety: control() and store() from any thread, the rest from one.
//
// Example:
//   auto session = Session::connect(environment_of_this_process());
//   session->control().agree("balance", "3,3,2");
//   auto group = session->connect_group("tensors");
class Session {
 public:
  // All processes call this, as often as one another. Returns when all have come. Throws
  // std::runtime_error that says who did not come within the limit, std::invalid_argument that says
  // what to set, Disagreement if builds differ, DistributedFailure if a process fails meanwhile.
  static std::unique_ptr<Session> connect(const Environment& environment,
                                          const SessionOptions& options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int64_t rank() const { return environment_.rank; }
  int64_t size() const { return environment_.size; }
  const Environment& environment() const { return environment_; }
  const Addresses& addresses() const { return addresses_; }
  Control& control() { return *control_; }
  // A client for the calling thread. Throws std::logic_error if this is the only process, which has
  // no store.
  std::unique_ptr<Store> store();

  // Each of `ranks`, this one among them, gives a value, and gets those of all of them, in their
  // order. They call it with the same `name`, which none has used before; the other ranks have no
  // part. Throws DistributedFailure if a process fails meanwhile, std::runtime_error if one of them
  // does not come within call_limit. std::logic_error if this is the only process.
  std::vector<std::string> exchange_among(const std::vector<int64_t>& ranks,
                                          const std::string& name, const std::string& value);

  // A group of all ranks, of which all must ask for the same `name`; each time it is a new one.
  // Throws what connect() does. std::logic_error if this is the only process.
  std::unique_ptr<Group> connect_group(const std::string& name);

 private:
  Session(const Environment& environment, const SessionOptions& options)
      : environment_(environment), options_(options) {}

  void meet();
  // On rank 0, which has no launcher's store.
  void serve(int port, const std::string& prefix, std::chrono::steady_clock::time_point end);
  void find_store(int port, const std::string& prefix, std::chrono::steady_clock::time_point end);
  std::string get_from_rank_0(const std::string& key, std::chrono::steady_clock::time_point end);
  // Throws std::runtime_error if another process has this one's rank.
  void claim_rank(std::chrono::steady_clock::time_point end);
  void find_peers(std::chrono::steady_clock::time_point end);
  // What the store's client returns, which waits for an answer without an end if the store is
  // stopped or cut off. Throws what the client does, DistributedFailure if a process fails
  // meanwhile, std::runtime_error if there is no answer by `end` and a moment more.
  template <typename Result>
  Result from_store(std::function<Result()> call, std::chrono::steady_clock::time_point end);
  std::string store_name() const;
  void compare_builds();
  void tell_of_too_many_threads();

  Environment environment_;
  SessionOptions options_;
  Addresses addresses_;
  // Rank 0's, of all its sessions at the same time: the port can be had once.
  std::shared_ptr<Store> served_;
  std::shared_ptr<Store> store_;
  int store_port_ = 0;
  std::string store_prefix_;
  std::unique_ptr<Control> control_;
  int64_t groups_ = 0;  // of this epoch
  int64_t groups_epoch_ = 0;
  Errands errands_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_SESSION_H_
