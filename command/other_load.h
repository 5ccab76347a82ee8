// OtherLoad: whether other work ran on this process's cores while something was measured.
#ifndef GPIPE_COMMAND_OTHER_LOAD_H_
#define GPIPE_COMMAND_OTHER_LOAD_H_

#include <optional>
#include <set>
#include <string>

namespace gpipe::command {

// What cores have done since the machine started, in the unit of /proc/stat.
struct CoreTimes {
  double busy = 0;  // with any work, or taken by another virtual machine
  double idle = 0;
};

// The sum over `cores` of a text like /proc/stat. Nothing if one of them is not in it.
std::optional<CoreTimes> core_times(const std::string& stat, const std::set<int>& cores);

// How the time of cores was shared.
struct LoadShares {
  double others = 0;  // 0 to 1
  double idle = 0;
};

// Between two points; `own`: the share of the cores' time that this process had. Nothing where
// nothing was counted (some sandboxes only pretend to have a /proc/stat).
std::optional<LoadShares> load_shares(const CoreTimes& begin, const CoreTimes& end, double own);

// Whether so much other work disturbs a measurement: it had a tenth of the cores' time, and there
// was no room for it beside ours.
bool disturbs(const LoadShares& shares);

// Thread-safety: none.
class OtherLoad {
 public:
  OtherLoad();  // watches from now on

  // The shares of the cores that the process may use. Nothing if it cannot be known, and for less
  // than half a second, of which it would say nothing.
  std::optional<LoadShares> shares() const;

 private:
  std::set<int> cores_;
  std::optional<CoreTimes> begin_;
  double begin_seconds_;
  double begin_own_;  // seconds of CPU
};

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_OTHER_LOAD_H_
