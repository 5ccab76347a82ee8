// Session: connects the processes of one run, by what the launcher said, into ranks that know each
// other, watch each other and have the same build.
#ifndef GPIPE_DISTRIBUTED_MEET_SESSION_H_
#define GPIPE_DISTRIBUTED_MEET_SESSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/distributed/control/control.h"
#include "gpipe/distributed/meet/addresses.h"
#include "gpipe/distributed/meet/c10d.h"
#include "gpipe/distributed/meet/detached_calls.h"
#include "gpipe/distributed/meet/environment.h"

namespace gpipe::distributed {

struct SessionOptions {
  // How long processes that have started wait for those that have not.
  std::chrono::milliseconds rendezvous_limit = std::chrono::minutes(5);
  // As in ControlOptions.
  std::chrono::milliseconds silence_limit = std::chrono::seconds(30);
  std::chrono::milliseconds call_limit = std::chrono::minutes(5);
  // How many threads an operator uses. With another number an operator may add up in another order,
  // so all ranks must have the same number. 0: LibTorch's current number.
  int64_t threads_per_operator = 0;
  // Rank 0 writes one line to standard error: which launcher was recognized, and the addresses.
  bool announce = true;
  // What tells the sessions of these processes apart in a store; the same on all ranks. Empty: how
  // many sessions this process has had, so all processes must have had equally many.
  std::string name;
  // Called every few milliseconds while connect() waits for other ranks. It throws if they do not
  // come any more.
  std::function<void()> check;
};

// Guarantees: all ports that it opens are on one address: that of the chosen interface, loopback if
// all ranks are on one machine. (torchrun opens its own store on all addresses.)
//
// Thread-safety: control() and store() from any thread, the rest from one.
//
// Example:
//   auto session = Session::connect(environment_of_this_process());
//   session->control().agree("balance", "3,3,2");
//   auto group = session->connect_group("tensors");
class Session {
 public:
  // All processes call this equally often. Returns when all have come. Throws std::runtime_error
  // that names the ranks that did not come within the limit, std::invalid_argument that says what
  // to set, Disagreement if builds differ, DistributedFailure if a process fails meanwhile.
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
  // A store client for the calling thread. Throws std::logic_error if this is the only process,
  // which has no store.
  std::unique_ptr<Store> store();

  // Each of `ranks`, this one among them, gives a value and gets the values of all of them, in the
  // order of `ranks`. They call it with the same `name`, which none has used before; other ranks do
  // not take part. Throws DistributedFailure if a process fails or the store is gone,
  // std::runtime_error if one of them does not come within call_limit, std::logic_error if this is
  // the only process.
  std::vector<std::string> exchange_among(const std::vector<int64_t>& ranks,
                                          const std::string& name, const std::string& value);

  // A new group of all ranks, which all must call this with the same `name`. Throws
  // DistributedFailure if a process fails or the ranks cannot connect, Disagreement if names
  // differ, std::logic_error if this is the only process.
  std::unique_ptr<Group> connect_group(const std::string& name);

 private:
  Session(const Environment& environment, const SessionOptions& options)
      : environment_(environment), options_(options) {}

  void meet();
  // On rank 0, if the launcher runs no store: runs one.
  void serve(int port, const std::string& prefix, std::chrono::steady_clock::time_point end);
  void find_store(int port, const std::string& prefix, std::chrono::steady_clock::time_point end);
  // Tells rank 0 that this rank has come, and returns the token of the processes that now meet;
  // makes it on rank 0.
  std::string find_token(int port, const std::string& prefix,
                         std::chrono::steady_clock::time_point end);
  std::string wait_for_token(std::chrono::steady_clock::time_point end);
  void give_token(int64_t peer, std::chrono::steady_clock::time_point end);
  // Both throw std::runtime_error if another process has this one's rank.
  void claim_rank(std::chrono::steady_clock::time_point end);
  void check_alone(std::chrono::steady_clock::time_point end);
  [[noreturn]] void refuse_rank() const;
  void withdraw();
  // The end of the message of a rank that met no other rank in time.
  std::string hint_of_a_second() const;
  void find_peers(std::chrono::steady_clock::time_point end);
  void wait_until_connected(std::chrono::steady_clock::time_point end);
  // Returns what `call`, a call of the store's client, returns. A client waits forever if the store
  // is stopped or cut off. This throws what the client throws, DistributedFailure if a process
  // fails meanwhile, std::runtime_error if there is no answer by shortly after `end`.
  template <typename Result>
  Result from_store(std::function<Result()> call, std::chrono::steady_clock::time_point end);
  std::string store_name() const;
  void compare_builds();
  void tell_of_too_many_threads();

  Environment environment_;
  SessionOptions options_;
  Addresses addresses_;
  // On rank 0 only. All its sessions that live at the same time share it: the port can be bound
  // only once.
  std::shared_ptr<Store> served_;
  // `store_` has what the processes that now meet write, under their token. `meeting_` is where
  // they find each other before.
  std::shared_ptr<Store> store_;
  std::shared_ptr<Store> meeting_;
  std::string token_;
  int64_t coming_ = 0;            // this process is the n-th that has come with its rank
  bool has_claimed_ = false;      // whether claim_rank() has counted this process
  bool store_is_silent_ = false;  // whether it has not answered in time
  // On rank 0: by rank, how many of its processes got a token.
  std::map<int64_t, int64_t> tokens_given_;
  int store_port_ = 0;
  std::string store_prefix_;
  std::unique_ptr<Control> control_;
  int64_t groups_ = 0;  // groups begun in groups_epoch_
  int64_t groups_epoch_ = 0;
  DetachedCalls detached_calls_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_SESSION_H_
