#include "command/other_load.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace gpipe::command {
namespace {

// If other work takes less than this share of the cores' time, the machine counts as quiet.
constexpr double kNotable = 0.1;

// The cores that the calling thread may use, as in usable_cores(). Empty if they are not known.
std::set<int> own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::set<int> found;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return found;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) found.insert(core);
  }
  return found;
}

std::optional<CoreTimes> times_now(const std::set<int>& cores) {
  std::ifstream file("/proc/stat");
  return core_times({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()},
                    cores);
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double own_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<CoreTimes> core_times(const std::string& stat, const std::set<int>& cores) {
  CoreTimes sum;
  std::size_t found = 0;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    // The line "cpu" without a number is skipped, because it is the sum of all cores.
    if (name.size() < 4 || name.compare(0, 3, "cpu") != 0 ||
        !std::all_of(name.begin() + 3, name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      continue;
    }
    if (cores.count(std::stoi(name.substr(3))) == 0) continue;
    // The first eight numbers of a line are user, nice, system, idle, iowait, irq, softirq and
    // steal. The numbers behind them are left out, because they are part of user and nice.
    constexpr std::size_t kIdle = 3;
    constexpr std::size_t kWaiting = 4;
    constexpr std::size_t kLast = 7;
    double time = 0;
    for (std::size_t k = 0; k <= kLast && words >> time; ++k) {
      (k == kIdle || k == kWaiting ? sum.idle : sum.busy) += time;
    }
    ++found;
  }
  if (found == 0 || found != cores.size()) return std::nullopt;
  return sum;
}

std::optional<LoadShares> load_shares(const CoreTimes& begin, const CoreTimes& end, double own) {
  const double busy = end.busy - begin.busy;
  const double idle = end.idle - begin.idle;
  const double all = busy + idle;
  if (!(all > 0)) return std::nullopt;
  return LoadShares{std::clamp(busy / all - own, 0.0, 1.0), std::clamp(idle / all, 0.0, 1.0)};
}

bool disturbs(const LoadShares& shares) {
  return shares.others >= kNotable && shares.idle < shares.others;
}

OtherLoad::OtherLoad()
    : cores_(own_cores()),
      begin_(times_now(cores_)),
      begin_seconds_(wall_seconds()),
      begin_own_(own_seconds()) {}

std::optional<LoadShares> OtherLoad::shares() const {
  const std::optional<CoreTimes> end = times_now(cores_);
  const double wall = wall_seconds() - begin_seconds_;
  // The kernel counts in hundredths of a second, so shares of a short time would be too inaccurate.
  if (!begin_ || !end || wall < 0.5) return std::nullopt;
  return load_shares(*begin_, *end,
                     (own_seconds() - begin_own_) / (wall * static_cast<double>(cores_.size())));
}

}  // namespace gpipe::command
