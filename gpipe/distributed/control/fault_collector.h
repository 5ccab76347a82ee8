// FaultCollector: the faults that one rank knows of, until it is decided what all ranks throw.
#ifndef GPIPE_DISTRIBUTED_CONTROL_FAULT_COLLECTOR_H_
#define GPIPE_DISTRIBUTED_CONTROL_FAULT_COLLECTOR_H_

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/failure.h"

namespace gpipe::distributed {

// Not thread-safe.
class FaultCollector {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Entry {
    Fault fault;
    Time when;
  };

  // Returns whether the fault was new. A rank's end or silence counts once, and not if the rank
  // threw: it ends because of that. If a fault comes twice, e.g. noticed here and sent by another
  // rank, the earlier time counts.
  bool add(Fault fault, Time when);

  bool empty() const { return entries_.empty(); }
  // Whether a rank ended, left or is silent, and has not thrown.
  bool has_loss_of(int64_t rank) const;
  // All entries, in the order in which they came. Afterwards the collector is empty.
  std::vector<Entry> take() { return std::exchange(entries_, {}); }

  // All faults in the order of DistributedFailure::faults(); within a kind and a time by rank.
  std::vector<Fault> sorted() const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_FAULT_COLLECTOR_H_
