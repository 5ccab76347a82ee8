#include "machine/cores.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace gpipe::machine {
namespace {

// Divides a quota by its period, both in microseconds. No value for "max" or -1, which mean that
// there is no quota.
std::optional<double> ratio(const std::string& quota, double period) {
  char* end = nullptr;
  const double time = std::strtod(quota.c_str(), &end);
  if (end == quota.c_str() || *end != '\0' || !(time > 0) || !(period > 0)) return std::nullopt;
  return time / period;
}

// The quota of one control group. No value if the group has no quota, or if its files do not exist.
std::optional<double> quota_v2(const std::string& group) {
  std::ifstream file(group + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period)) return std::nullopt;
  return ratio(quota, period);
}
std::optional<double> quota_v1(const std::string& group) {
  std::ifstream quota_file(group + "/cpu.cfs_quota_us");
  std::ifstream period_file(group + "/cpu.cfs_period_us");
  std::string quota;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  return ratio(quota, period);
}

// A line of /proc/self/cgroup: "4:cpu,cpuacct:/path", or "0::/path" in cgroup v2.
struct Group {
  std::string controllers;  // empty: cgroup v2
  std::string path;
};

bool has_cpu(const std::string& controllers) {
  std::istringstream stream(controllers);
  for (std::string each; std::getline(stream, each, ',');) {
    if (each == "cpu") return true;
  }
  return false;
}

// The folder's device and inode number, which are the same in all mounts and namespaces.
std::string file_number(const std::string& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return folder;
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

// The control groups of this process that may limit CPU time.
std::vector<Group> groups_in(const std::string& file) {
  std::vector<Group> groups;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    Group group{line.substr(first + 1, second - first - 1), line.substr(second + 1)};
    if (group.controllers.empty() || has_cpu(group.controllers)) groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

std::vector<int> usable_core_numbers() {
  // The set grows until it is large enough: sched_getaffinity() fails with EINVAL if the set is
  // smaller than the system's, which may have more than the 1,024 cores of a cpu_set_t.
  for (int room = 1024; room <= 1 << 20; room *= 2) {
    std::vector<unsigned long> words(CPU_ALLOC_SIZE(room) / sizeof(unsigned long));
    auto* const set = reinterpret_cast<cpu_set_t*>(words.data());
    const std::size_t bytes = words.size() * sizeof(unsigned long);
    if (sched_getaffinity(0, bytes, set) == 0) {
      std::vector<int> cores;
      for (int core = 0; core < room; ++core) {
        if (CPU_ISSET_S(core, bytes, set)) cores.push_back(core);
      }
      return cores;
    }
    if (errno != EINVAL) break;
  }
  throw std::runtime_error("the system does not say which cores may be used: " +
                           std::string(std::strerror(errno)));
}

// A process in a container sees its own group as the root, or it sees the host's path, which does
// not exist in the container's mount. So each parent of the path is tried, up to the root.
std::vector<Quota> core_quotas(const std::string& file, const std::string& folder) {
  std::vector<Quota> quotas;
  for (const Group& group : groups_in(file)) {
    const auto& [controllers, own_path] = group;
    const bool is_v2 = controllers.empty();
    std::string mount = folder + (is_v2 ? "" : "/" + controllers);
    // On older systems the folder's name may list the controllers in another order than `file`.
    // Each controller then has a link of its own.
    if (!is_v2 && !std::filesystem::exists(mount)) mount = folder + "/cpu";
    for (std::string path = own_path;; path.resize(path.rfind('/'))) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      const std::string place = mount + path;
      if (const auto cores = is_v2 ? quota_v2(place) : quota_v1(place)) {
        quotas.push_back({file_number(place), *cores});
      }
      if (path.find('/') == std::string::npos) break;
    }
  }
  return quotas;
}

std::optional<double> core_quota(const std::string& file, const std::string& folder) {
  const std::vector<Quota> quotas = core_quotas(file, folder);
  const auto least =
      std::min_element(quotas.begin(), quotas.end(),
                       [](const Quota& a, const Quota& b) { return a.cores < b.cores; });
  return least == quotas.end() ? std::nullopt : std::optional<double>(least->cores);
}

int64_t within_quota(int64_t cores, std::optional<double> quota) {
  if (quota && *quota < static_cast<double>(cores)) cores = static_cast<int64_t>(*quota);
  return std::max<int64_t>(cores, 1);
}

int64_t usable_cores() {
  int64_t cores = 0;
  try {
    cores = static_cast<int64_t>(usable_core_numbers().size());
  } catch (const std::runtime_error&) {
    cores = std::thread::hardware_concurrency();
  }
  return within_quota(cores, core_quota());
}

int64_t machine_cores() { return std::max<int64_t>(sysconf(_SC_NPROCESSORS_ONLN), 1); }

}  // namespace gpipe::machine
