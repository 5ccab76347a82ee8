// usable_cores: how many cores this process may use.
#ifndef GPIPE_MACHINE_CORES_H_
#define GPIPE_MACHINE_CORES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::machine {

// The numbers of the cores of the calling thread's affinity (taskset, a batch system's share),
// ascending. Throws std::runtime_error where the system does not say.
std::vector<int> usable_core_numbers();

// A limit of time that a control group sets to its processes and those of the groups below it.
struct Quota {
  // Names the group: equal in two processes of one machine if both are under its limit, also where
  // their containers have other paths to it.
  std::string group;
  double cores = 0;  // of time
};

// The limits of this process's control group and those above it (cgroup v2 `cpu.max`, v1
// `cpu.cfs_quota_us` by `cpu.cfs_period_us`), as with `docker run --cpus=1.5`. Empty: as many cores
// as there are. `file` and `folder` are for tests.
std::vector<Quota> core_quotas(const std::string& file = "/proc/self/cgroup",
                               const std::string& folder = "/sys/fs/cgroup");
// The least of them, if there is one.
std::optional<double> core_quota(const std::string& file = "/proc/self/cgroup",
                                 const std::string& folder = "/sys/fs/cgroup");

// `cores`, or as many as a quota has whole ones, at least one. A thread more than the quota stands
// still for a part of each period, and the threads that share an operator with it wait.
int64_t within_quota(int64_t cores, std::optional<double> quota);

// The cores of the affinity, within the quota: at least one. Not those of the machine, as
// std::thread::hardware_concurrency() counts.
int64_t usable_cores();

// The cores of the machine, whatever the affinity and the quotas of this process.
int64_t machine_cores();

}  // namespace gpipe::machine

#endif  // GPIPE_MACHINE_CORES_H_
