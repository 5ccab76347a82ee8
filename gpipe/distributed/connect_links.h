// LinkPools: all links of this process, connected as programs need them.
#ifndef GPIPE_DISTRIBUTED_CONNECT_LINKS_H_
#define GPIPE_DISTRIBUTED_CONNECT_LINKS_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/device_links.h"
#include "gpipe/distributed/message_plan.h"
#include "gpipe/internal/processes/processes.h"

namespace gpipe::distributed {

// Programs whose stages are on the same devices share links, for only one runs at a time.
//
// Thread-safety: one thread at a time.
class LinkPools {
 public:
  // What it needs of the other processes; as those of Processes and Control.
  struct Others {
    int64_t rank = 0;
    std::function<std::vector<std::string>(const std::string& name, const std::string& value)>
        exchange;
    // Throws if another process has failed.
    std::function<void()> check;
    // Throws what all of them throw; `symptom` if nothing else is known.
    std::function<void(const std::string& symptom)> fail;
  };

  // `kind` and what `others` refers to outlive it.
  LinkPools(const LinkKind& kind, Others others) : kind_(kind), others_(std::move(others)) {}

  // All processes call this for the same programs, in a call of all: `plan` has the edges of the
  // replica that this process is in, and `device` is that of its stages. Returns when the links of
  // all edges that begin or end here are connected. The result belongs to this object.
  //
  // Throws FoundByAll if two processes are on one device; what others.fail() throws if a link
  // cannot be connected.
  DeviceLinks& connect(const MessagePlan& plan, c10::Device device);

 private:
  const LinkKind& kind_;
  const Others others_;
  // By the devices of all processes: at both ends of an edge the pool has been asked for the same
  // edges before, so both know whether there is a link.
  std::map<std::vector<std::string>, std::unique_ptr<DeviceLinks>> pools_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONNECT_LINKS_H_
