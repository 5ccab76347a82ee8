#include "gpipe/distributed/control/fault_collector.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

namespace gpipe::distributed {
namespace {

// The greatest number of faults that are kept. A process with many workers may throw many
// exceptions, and more of them explain nothing new.
constexpr std::size_t kMostFaults = 256;

bool is_exception(const Fault& fault) { return fault.kind == FaultKind::kException; }

int urgency(FaultKind kind) {
  switch (kind) {
    case FaultKind::kException:
      return 0;
    case FaultKind::kDeath:
    case FaultKind::kLeft:
      return 1;
    case FaultKind::kSilence:
      break;
  }
  return 2;
}

}  // namespace

bool FaultCollector::add(Fault fault, Time when) {
  for (Entry& entry : entries_) {
    if (entry.fault.rank != fault.rank) continue;
    if (is_exception(entry.fault)) {
      if (is_exception(fault) && !(entry.fault == fault)) continue;
      if (is_exception(fault)) entry.when = std::min(when, entry.when);
      return false;  // the rank's end follows from its exception
    }
    if (is_exception(fault)) {
      entry = {std::move(fault), when};
      return true;
    }
    entry.when = std::min(when, entry.when);
    return false;
  }
  if (entries_.size() == kMostFaults) return false;
  entries_.push_back({std::move(fault), when});
  return true;
}

bool FaultCollector::has_loss_of(int64_t rank) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.fault.rank == rank && !is_exception(entry.fault);
  });
}

std::vector<Fault> FaultCollector::sorted() const {
  std::vector<Entry> entries = entries_;
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::make_tuple(urgency(a.fault.kind), a.when, a.fault.rank) <
           std::make_tuple(urgency(b.fault.kind), b.when, b.fault.rank);
  });
  std::vector<Fault> faults;
  faults.reserve(entries.size());
  for (Entry& entry : entries) faults.push_back(std::move(entry.fault));
  return faults;
}

}  // namespace gpipe::distributed
