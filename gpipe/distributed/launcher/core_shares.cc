#include "gpipe/distributed/launcher/core_shares.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>

namespace gpipe::distributed {
namespace {

// A set of cores, which may be more than the 1,024 that fit into cpu_set_t.
class CoreSet {
 public:
  explicit CoreSet(int cores) : words_(CPU_ALLOC_SIZE(cores) / sizeof(unsigned long)) {}

  cpu_set_t* data() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

}  // namespace

std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int64_t processes) {
  const auto count = static_cast<int64_t>(cores.size());
  std::vector<std::vector<int>> shares;
  for (int64_t k = 0; k < processes; ++k) {
    const int64_t first = k * count / processes;
    const int64_t end = std::max((k + 1) * count / processes, first + 1);
    shares.emplace_back(cores.begin() + first, cores.begin() + end);
  }
  return shares;
}

bool bind_to_cores(const std::vector<int>& cores) {
  CoreSet set(*std::max_element(cores.begin(), cores.end()) + 1);
  for (const int core : cores) CPU_SET_S(core, set.bytes(), set.data());
  return sched_setaffinity(0, set.bytes(), set.data()) == 0;
}

}  // namespace gpipe::distributed
