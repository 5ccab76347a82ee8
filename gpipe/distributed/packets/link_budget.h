// LinkBudget: what the links of a device take of it, and how much each of them may take.
#ifndef GPIPE_DISTRIBUTED_PACKETS_LINK_BUDGET_H_
#define GPIPE_DISTRIBUTED_PACKETS_LINK_BUDGET_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/distributed/packets/device_link.h"

namespace gpipe::distributed {

// What all links of a device take at most.
struct LinkLoad {
  int64_t links = 0;
  int64_t blocks = 0;  // multiprocessors
  int64_t bytes = 0;
  int64_t multiprocessors = 0;  // those of the device; 0: links occupy none
};

inline auto fields(LinkLoad& load) {
  return std::tie(load.links, load.blocks, load.bytes, load.multiprocessors);
}

// A text like "4 links, which take at most 16 of 132 multiprocessors and 128 MiB of memory".
std::string to_text(const LinkLoad& load);

class LinkBudget {
 public:
  // How many multiprocessors a link may occupy if there is room. NCCL takes about 16 where GPUs
  // have fast links. The number was not measured, as it never ran on several GPUs.
  static constexpr int64_t kMostBlocks = 4;

  // `kind` outlives it.
  LinkBudget(const LinkKind& kind, c10::Device device);

  // Adds links, and returns how many multiprocessors each of them may occupy: a power of two, and
  // kMostBlocks unless all links together would then occupy more than a quarter of the device.
  //
  // Throws std::runtime_error, and adds nothing, if these links alone would occupy more than half
  // of it even so. A link occupies them while it waits for another process, which may wait for this
  // one's work. Links that were added before belong to other pipelines, which do not run meanwhile.
  int64_t add(const std::vector<LinkEnd>& ends);

  const LinkLoad& load() const { return load_; }

 private:
  const LinkKind& kind_;
  LinkLoad load_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_LINK_BUDGET_H_
