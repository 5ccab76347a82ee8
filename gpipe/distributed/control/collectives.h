// Collectives: one rank's knowledge of the calls in which all ranks compare or exchange values.
//
// Each rank counts its own calls from the beginning of each epoch. Rank 0 is told what each rank
// says in which call, and decides; all ranks use its verdict. control.h carries the messages and
// ends waits.
#ifndef GPIPE_DISTRIBUTED_CONTROL_COLLECTIVES_H_
#define GPIPE_DISTRIBUTED_CONTROL_COLLECTIVES_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/control/control_messages.h"

namespace gpipe::distributed {

// Not thread-safe.
//
// Guarantees: words and verdicts of an earlier epoch are ignored. Those of the next epoch, which
// other ranks may have begun earlier, are kept.
class Collectives {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Decision {
    uint32_t epoch = 0;
    Verdict verdict;
  };

  explicit Collectives(int64_t size) : size_(size) {}

  // This rank's own calls, one at a time. A call that a failure interrupts is not ended; the end of
  // its epoch discards it.
  uint64_t begin() { return ++begun_; }  // returns its number
  uint64_t begun() const { return begun_; }
  uint64_t ended() const { return ended_; }
  bool is_waiting() const { return begun_ > ended_; }
  bool has_verdict() const { return verdicts_.count({epoch_, begun_}) != 0; }
  // Requirements: has_verdict().
  Verdict end();

  // On all ranks: takes a verdict of rank 0.
  void know(uint32_t epoch, Verdict verdict);

  // On rank 0: takes what a rank, possibly this one, says. Returns the verdict for all ranks if
  // these words decide the call.
  std::optional<Verdict> hear(int64_t rank, uint32_t epoch, Agree agree, Time now);
  // On rank 0: decides each undecided call whose first rank came at `latest` or before. `waited`:
  // how long ago that is, for messages.
  std::vector<Decision> give_up(Time latest, const std::string& waited);

  // Forgets the calls of earlier epochs.
  void begin_epoch(uint32_t epoch);

 private:
  using Key = std::pair<uint32_t, uint64_t>;  // an epoch, and the number of a call
  struct Poll {                               // one call, until all ranks have come to it
    Agreement agreement;
    Time begin{};
  };

  int64_t size_;
  uint32_t epoch_ = 0;
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;  // number of the begun calls that have ended
  std::map<Key, Poll> polls_;
  std::map<Key, Verdict> verdicts_;  // that end() has not taken yet
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_COLLECTIVES_H_
