// Control: tells every rank of a run within a moment that it has to stop, and why.
//
// Each rank has a connection to each other rank, beside the connections that carry tensors. When a
// process ends, its connections close, and all other ranks notice that at once. A process that is
// stopped, or cut off from the network, is noticed by its silence. A rank that throws tells all
// others. One rank decides what all ranks throw, so that it is the same everywhere. Control needs
// no LibTorch, and no store once the ranks have found each other (session.h).
#ifndef GPIPE_DISTRIBUTED_CONTROL_CONTROL_H_
#define GPIPE_DISTRIBUTED_CONTROL_CONTROL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/control/watchers.h"
#include "gpipe/distributed/sockets/sockets.h"

namespace gpipe::distributed {

struct ControlOptions {
  int64_t rank = 0;
  int64_t size = 1;
  // This rank's machine, for messages.
  std::string host;
  // A secret shared by all ranks of a run. A connection that does not present it is rejected.
  std::string token;
  // A socket from listen_on(). It is closed when all ranks are connected.
  Socket listener;
  // How long a rank may be silent. A rank that computes is not silent: Control's thread answers.
  std::chrono::milliseconds silence_limit = std::chrono::seconds(30);
  // How long agree(), exchange() and next_epoch() wait for a rank that is alive but does not come.
  std::chrono::milliseconds call_limit = std::chrono::minutes(5);
};

// Guarantees: when a rank reports an exception, ends, is killed or leaves early, every other rank
// that is still connected has a DistributedFailure with the same faults in under one second. When a
// rank is stopped or cut off, they have it one second after the silence limit. The failure contains
// all faults that happen within 20 ms. If the network is cut, this holds within each part. It also
// holds on a rank that was stopped and continues: it is told what the others decided, and takes
// part no more.
//
// A stranger that connects, whatever it sends or does not send, is dropped and changes nothing.
// Nothing is encrypted: the network must be a private one.
//
// Thread-safety: all functions are thread-safe; Watch and Call say more.
//
// Example:
//   Control control(std::move(options));
//   control.add_peer(0, endpoint_of_rank_0);           // each rank with a lower number
//   control.wait_until_connected(deadline);
//   control.agree("balance", "3,3,2");
class Control {
 public:
  // Begins to listen and to answer, on a thread of its own.
  explicit Control(ControlOptions options);
  // Leaves the run: tells the others that this rank no longer needs them. Waits until they know, at
  // most one second.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int64_t rank() const;
  int64_t size() const;

  // Tells where a rank with a lower number listens. Ranks with higher numbers connect to this one.
  void add_peer(int64_t rank, const Endpoint& endpoint);
  // Throws DistributedFailure, or std::runtime_error that names the ranks that are missing.
  void wait_until_connected(std::chrono::steady_clock::time_point deadline);
  // The host of a rank that is connected.
  std::string host_of(int64_t rank) const;

  // Throws DistributedFailure if something has failed since the last next_epoch(). Otherwise it
  // takes almost no time.
  void check();
  // Whether check() would throw.
  bool failed() const;

  // Says that this rank failed: cancels the work that this rank's watches guard, then tells all
  // ranks. Fills in the fault's rank and host. Does not wait.
  void report(Fault fault);
  // Reports a fault that belongs to `epoch`. If that epoch is over, nothing happens.
  void report(Fault fault, int64_t epoch);
  // Like report(), for the exception that is being handled. A DistributedFailure is not this rank's
  // own fault and is not reported again.
  void report_current_exception();

  // Waits until the ranks have decided what failed, and throws it. `symptom`: the caller's reason
  // to think that something failed. If nothing else is known within two seconds, this rank reports
  // the symptom as its fault.
  [[noreturn]] void throw_failure(const std::string& symptom);
  // As throw_failure() above, for a symptom that belongs to `epoch`. If that epoch is over, throws
  // std::runtime_error with the symptom, and nothing else happens.
  [[noreturn]] void throw_failure(const std::string& symptom, int64_t epoch);

  // Compares `value` over all ranks, all of which must call this with the same `name`, as their
  // n-th call. Throws Disagreement on all of them if they do not, DistributedFailure if a rank
  // fails meanwhile, std::invalid_argument for more than a megabyte (compare a hash of it). One
  // thread at a time.
  void agree(const std::string& name, const std::string& value);

  // Each rank gives `value`, of any bytes; all get the values of all, by rank. Otherwise it is like
  // agree(): all ranks call it with the same `name` as their n-th call (calls of agree() and
  // exchange() are counted together).
  // Throws Disagreement on all of them if the names differ, or one compares where another
  // exchanges; DistributedFailure if a rank fails meanwhile; std::invalid_argument for a value that
  // is too long: the values of all ranks must fit into one message, so the limit is about a
  // megabyte divided by the number of ranks.
  // `is_patient`: waits without a limit, because other ranks may still be computing; it must be the
  // same on all ranks.
  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    bool is_patient = false);

  // This rank begins a call that all ranks make, e.g. a step: the n-th has the number n. Each
  // comparison and exchange in the call carries that number. If two ranks have different numbers,
  // all throw the same Disagreement, which says which rank is how many calls behind. The calls up
  // to the largest of these numbers are given up.
  //
  // So the n-th call ends alike on all ranks: it succeeds on all, or fails on all.
  void count_call();
  // Throws Disagreement if another rank has given up the call that this one has begun.
  void check_not_given_up();

  // The number of failures from which the ranks have recovered. Faults, symptoms and values of an
  // earlier epoch are ignored.
  int64_t epoch() const;
  // After a failure: waits until all ranks call this, then forgets the failure. Throws
  // DistributedFailure, the same on all ranks, if a rank is lost: then only a new session helps.
  // Throws Disagreement if a rank does not come within call_limit, which gives up this rank's call
  // on all ranks; std::logic_error without a failure.
  void next_epoch();

  // While it lives, `cancel` is called once, on any thread, if something fails; at once if
  // something already has failed. `cancel` must not block, nor use a Control.
  class Watch {
   public:
    Watch(Control& control, std::function<void()> cancel);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Control& control_;
    Watchers::Place place_;
  };

  // While it lives, this rank is in a call that needs all ranks, e.g. a step. A rank that leaves
  // before it has ended the same call has failed. One Call at a time.
  class Call {
   public:
    // Throws DistributedFailure if something has failed or a rank has left.
    explicit Call(Control& control);
    // If done() was not called, this rank has not completed the call. If nothing else has failed,
    // that is reported as its fault.
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    void done() { done_ = true; }

   private:
    Control& control_;
    bool done_ = false;
  };

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_CONTROL_H_
