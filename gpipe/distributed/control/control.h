// Control: tells every rank of a run within a moment why it has to stop.
//
// Each rank has a connection to each other one, beside those that carry tensors. The end of a
// process closes its connections, which all others see at once; a process that is stopped, or
// behind a cut, is noticed by its silence. Whoever throws tells all. What all ranks throw is
// decided by one of them, so that it is the same everywhere. It needs no LibTorch, and no store
// once the ranks have found each other (session.h).
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
  // The same on all ranks of a run, and hard to guess: who does not know it is no rank.
  std::string token;
  // From listen_on(). It is closed when all ranks are connected.
  Socket listener;
  // How long a rank may be silent. One that computes is not silent: a thread of its own answers.
  std::chrono::milliseconds silence_limit = std::chrono::seconds(30);
  // How long agree(), exchange() and next_epoch() wait for a rank that is alive but does not come.
  std::chrono::milliseconds call_limit = std::chrono::minutes(5);
};

// Guarantees: when a rank reports an exception, ends, is killed or leaves early, every other rank
// that is still connected has a DistributedFailure with the same faults in under one second; when
// one is stopped or cut off, in one second after the silence limit. Faults that happen within 20 ms
// are all in it. If the network is cut, this holds within each part. On a rank that has been
// stopped and goes on, too: it is told what the others decided, and takes part no more.
//
// A stranger that connects, whatever it sends or does not send, is dropped and changes nothing.
// Nothing is encrypted: the network must be a private one.
//
// Thread-safety: all functions are thread-safe; Watch and Call say more.
//
// Example:
//   Control control(std::move(options));
//   control.add_peer(0, endpoint_of_rank_0);           // those with lower ranks
//   control.wait_until_connected(deadline);
//   control.agree("balance", "3,3,2");
class Control {
 public:
  // Begins to listen and to answer, on a thread of its own.
  explicit Control(ControlOptions options);
  // Leaves: the others are told that this rank needs nobody any more. Waits, at most a second,
  // until they know.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int64_t rank() const;
  int64_t size() const;

  // Where a rank with a lower number listens. Those with higher numbers come by themselves.
  void add_peer(int64_t rank, const Endpoint& endpoint);
  // Throws DistributedFailure, or std::runtime_error that names the ranks that are missing.
  void wait_until_connected(std::chrono::steady_clock::time_point deadline);
  // The host of a rank that is connected.
  std::string host_of(int64_t rank) const;

  // Throws DistributedFailure if something has failed since the last next_epoch(). It costs next to
  // nothing otherwise.
  void check();
  // Whether check() would throw.
  bool failed() const;

  // This rank failed: cancels what the watches here watch, then tells all. Its rank and host are
  // filled in. Does not wait.
  void report(Fault fault);
  // Of what belongs to `epoch`. If that is over, the report comes too late, and nothing happens.
  void report(Fault fault, int64_t epoch);
  // Like report(), for an exception that is being handled. A DistributedFailure is none of this
  // rank's own and is not told again.
  void report_current_exception();

  // Waits until the ranks have decided what failed, and throws it. `symptom`: what makes the caller
  // think that something failed; should nothing else be known within two seconds, this rank reports
  // that.
  [[noreturn]] void throw_failure(const std::string& symptom);
  // Of what belongs to `epoch`. If that is over, the symptom comes too late to be one of this
  // epoch: throws std::runtime_error with it, and nothing else happens.
  [[noreturn]] void throw_failure(const std::string& symptom, int64_t epoch);

  // Compares `value` over all ranks, all of which must call this with the same `name`, as their
  // n-th call. Throws Disagreement on all of them if they do not, DistributedFailure if a rank
  // fails meanwhile, std::invalid_argument for more than a megabyte (compare a hash of it). One
  // thread at a time.
  void agree(const std::string& name, const std::string& value);

  // Each rank gives `value`, of any bytes; all get the values of all, by rank. As agree() for the
  // rest: all ranks call it with the same `name` as their n-th call (both are counted together).
  // Throws Disagreement on all of them if the names differ, or one compares where another
  // exchanges; DistributedFailure if a rank fails meanwhile; std::invalid_argument for a value that
  // is too long: all of them must fit into one message, so the limit is about a megabyte divided by
  // the number of ranks.
  // `is_patient`: call_limit does not count, for the others come from work of any length; the same
  // on all ranks.
  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    bool is_patient = false);

  // This rank begins a call that all ranks make, e.g. a step: the n-th has the number n. All that
  // it compares and exchanges in it says so. Where two ranks differ in it, all throw one
  // Disagreement, which says which rank is how many calls behind, and the calls up to the largest
  // of these numbers are given up.
  //
  // So the n-th call has one end on all ranks: it goes well on all, or fails on all.
  void count_call();
  // Throws Disagreement if another rank has given up the call that this one has begun.
  void check_not_given_up();

  // Counts failures that the ranks have got over. What belongs to an earlier epoch is ignored.
  int64_t epoch() const;
  // After a failure: waits until all ranks call this, then forgets it. Throws DistributedFailure if
  // a rank is lost, the same on all ranks, so that there is no way but a new session; Disagreement
  // if a rank does not come within call_limit, which gives up this rank's call, for all;
  // std::logic_error without a failure.
  void next_epoch();

  // While it lives, `cancel` is called once if something fails, at once if something has already,
  // on any thread. It must not block, nor use a Control.
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

  // While it lives, this rank is in a call that all ranks make, e.g. a step, and which needs all: a
  // rank that leaves before its end of the same call has failed. One at a time.
  class Call {
   public:
    // Throws DistributedFailure if something has failed or a rank has left.
    explicit Call(Control& control);
    // Without done() this rank has not done its part; if nothing else failed, that is reported.
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
