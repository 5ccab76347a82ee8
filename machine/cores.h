// cores: how many cores this process may use.
#ifndef GPIPE_MACHINE_CORES_H_
#define GPIPE_MACHINE_CORES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::machine {

// Returns the numbers of the cores in the calling thread's affinity (set by taskset or a batch
// system), ascending. Throws std::runtime_error if the system does not tell them.
std::vector<int> usable_core_numbers();

// A limit of CPU time that a control group sets for its processes and those of its subgroups.
struct Quota {
  // The group's identity: equal in two processes of one machine if both are under its limit, even
  // if their containers reach the group by different paths.
  std::string group;
  double cores = 0;  // CPU time per time
};

// Returns the limits of this process's control group and the groups above it (cgroup v2 `cpu.max`,
// v1 `cpu.cfs_quota_us` by `cpu.cfs_period_us`), as set by `docker run --cpus=1.5`. Empty: no
// limit. `file` and `folder` are for tests.
std::vector<Quota> core_quotas(const std::string& file = "/proc/self/cgroup",
                               const std::string& folder = "/sys/fs/cgroup");
// Returns the smallest of these limits, if there is one.
std::optional<double> core_quota(const std::string& file = "/proc/self/cgroup",
                                 const std::string& folder = "/sys/fs/cgroup");

// Returns `cores`, or the whole cores of a smaller quota, at least one. With a thread more than the
// quota, threads stand still for a part of each period, and the others of the same operator wait
// for them.
int64_t within_quota(int64_t cores, std::optional<double> quota);

// Returns the number of cores in the affinity, within the quota: at least one.
// std::thread::hardware_concurrency() counts the machine's cores instead.
int64_t usable_cores();

// Returns the number of the machine's cores, regardless of this process's affinity and quotas.
int64_t machine_cores();

}  // namespace gpipe::machine

#endif  // GPIPE_MACHINE_CORES_H_
