// OtherLoad: finds out whether other work ran on this process's cores during a measurement.
#ifndef GPIPE_COMMAND_OTHER_LOAD_H_
#define GPIPE_COMMAND_OTHER_LOAD_H_

#include <optional>
#include <set>
#include <string>

namespace gpipe::command {

// The time that cores were busy and idle since the machine started, in the unit of /proc/stat.
struct CoreTimes {
  double busy = 0;  // the cores did any work, or were used by another virtual machine
  double idle = 0;
};

// The sum over `cores` from a text like /proc/stat. None if one of the cores is not in it.
std::optional<CoreTimes> core_times(const std::string& stat, const std::set<int>& cores);

// The shares of the cores' time.
struct LoadShares {
  double others = 0;  // the share of other processes, 0 to 1
  double idle = 0;
};

// The shares between two points of time. `own`: this process's share of the cores' time. None if
// nothing was counted (some sandboxes only pretend to have a /proc/stat).
std::optional<LoadShares> load_shares(const CoreTimes& begin, const CoreTimes& end, double own);

// Whether other work disturbs a measurement: it took a tenth of the cores' time, and the cores had
// no room left for it beside this process.
bool disturbs(const LoadShares& shares);

// Thread-safety: none.
class OtherLoad {
 public:
  OtherLoad();  // watches from now on

  // The shares since the construction, of the cores that the process may use. None if the shares
  // are not known, or if less than half a second has passed, which is too short to tell.
  std::optional<LoadShares> shares() const;

 private:
  std::set<int> cores_;
  std::optional<CoreTimes> begin_;
  double begin_seconds_;
  double begin_own_;  // this process's seconds of CPU
};

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_OTHER_LOAD_H_
