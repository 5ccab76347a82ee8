#include "gpipe/distributed/packets/device_link.h"

#include <map>
#include <stdexcept>
#include <string>

#include "gpipe/distributed/packets/nccl_link.h"

namespace gpipe::distributed {
namespace {

// The kinds are a function-local static, because static initializers of other files add to them.
std::map<std::string, const LinkKind*>& kinds() {
  static std::map<std::string, const LinkKind*> all = {{nccl_links().name(), &nccl_links()}};
  return all;
}

}  // namespace

const LinkKind& link_kind(const std::string& name) {
  const auto found = kinds().find(name);
  if (found != kinds().end()) return *found->second;
  std::string known;
  for (const auto& [other, kind] : kinds()) known += ", " + other;
  throw std::invalid_argument("GPIPE_DEVICE_LINKS='" + name +
                              "' is not a way between the devices of processes. There are: host "
                              "(the default: by way of the host's memory)" +
                              known);
}

void add_link_kind(const LinkKind& kind) { kinds()[kind.name()] = &kind; }

}  // namespace gpipe::distributed
