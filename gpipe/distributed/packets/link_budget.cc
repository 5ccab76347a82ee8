#include "gpipe/distributed/packets/link_budget.h"

#include <algorithm>
#include <stdexcept>

namespace gpipe::distributed {

std::string to_text(const LinkLoad& load) {
  constexpr int64_t kMiB = 1 << 20;
  return std::to_string(load.links) +
         (load.links == 1 ? " link, which takes" : " links, which take") + " at most " +
         std::to_string(load.blocks) + " of " + std::to_string(load.multiprocessors) +
         " multiprocessors and " + std::to_string((load.bytes + kMiB - 1) / kMiB) +
         " MiB of memory";
}

LinkBudget::LinkBudget(const LinkKind& kind, c10::Device device) : kind_(kind) {
  load_.multiprocessors = kind.multiprocessors(device);
}

int64_t LinkBudget::add(const std::vector<LinkEnd>& ends) {
  int64_t most = kMostBlocks;
  if (load_.multiprocessors > 0 && !ends.empty()) {
    const int64_t room = load_.multiprocessors / 4 - load_.blocks;
    while (most > 1 && most * static_cast<int64_t>(ends.size()) > room) most /= 2;
  }
  LinkLoad added;
  added.multiprocessors = load_.multiprocessors;
  for (const LinkEnd& end : ends) {
    const LinkCost cost = kind_.cost(end, most);
    ++added.links;
    added.blocks += cost.blocks;
    added.bytes += cost.bytes;
  }
  if (added.blocks > added.multiprocessors / 2 && added.multiprocessors > 0) {
    throw std::runtime_error(
        "on this rank's device a pipeline would need " + to_text(added) +
        ", and at most half of these may wait for other processes: let fewer processes send to "
        "each other (Placement, skips, replicas), unset NCCL_MAX_CTAS and NCCL_MIN_P2P_NCHANNELS "
        "if they are set, or unset GPIPE_DEVICE_LINKS");
  }
  load_.links += added.links;
  load_.blocks += added.blocks;
  load_.bytes += added.bytes;
  return most;
}

}  // namespace gpipe::distributed
