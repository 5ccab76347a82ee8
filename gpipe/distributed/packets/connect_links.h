// LinkPools: connects this process's links to others when programs need them, and keeps them.
#ifndef GPIPE_DISTRIBUTED_PACKETS_CONNECT_LINKS_H_
#define GPIPE_DISTRIBUTED_PACKETS_CONNECT_LINKS_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/packets/device_links.h"
#include "gpipe/distributed/packets/link_budget.h"
#include "gpipe/distributed/packets/message_plan.h"

namespace gpipe::distributed {

// A hash of LinkKind::identity(). It is the same in all processes, because they have the same
// build, and never 0.
int64_t device_number(const std::string& identity);

// Programs whose stages are on the same devices share links, because only one runs at a time.
//
// Thread-safety: one thread at a time, except for abort().
class LinkPools {
 public:
  // How LinkPools reaches the other processes.
  struct Others {
    int64_t rank = 0;
    // Each of `ranks` gives a value, and gets the values of all of them, in the order of `ranks`.
    // These are not always all processes: a replica without rows has no run.
    std::function<std::vector<std::string>(const std::string& name, const std::string& value,
                                           const std::vector<int64_t>& ranks)>
        exchange;
    // Throws if another process has failed.
    std::function<void()> check;
    // Throws what all processes throw; `symptom` is the reason if no other is known.
    std::function<void(const std::string& symptom)> fail;
    // Tells the user what links take. May be null.
    std::function<void(const std::string& text)> say;
  };

  // `kind` and what `others` refers to outlive it.
  LinkPools(const LinkKind& kind, Others others) : kind_(kind), others_(std::move(others)) {}

  // All processes that have a worker call this, for the same programs in the same order. `device`
  // is this process's device. Returns when the links of all edges that begin or end here are
  // connected. The result belongs to this object.
  //
  // Throws c10::ValueError if two of the processes are on one device; what others.fail() throws if
  // a link cannot be connected; std::runtime_error if links would occupy too much of this process's
  // device (LinkBudget).
  DeviceLinks& connect(const MessagePlan& plan, c10::Device device);
  // The links of `edges`, between some of `ranks`, all of which call this for the same lists in the
  // same order. {DeviceLinks::kSet}: one link of all `ranks`. `devices`: device_number() of each
  // rank's device, all different. Otherwise as above. Links that a program or an earlier call had
  // connected between these ranks serve here, too.
  DeviceLinks& connect(const std::vector<int64_t>& ranks, const std::vector<int64_t>& devices,
                       const std::vector<Edge>& edges, c10::Device device);

  // DeviceLinks::settle() and abort() of all links. After abort() none is connected any more.
  void settle() noexcept;
  void abort() noexcept;

 private:
  const LinkKind& kind_;
  const Others others_;
  // The processes and the numbers of their devices.
  using Key = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
  struct Pool {
    std::unique_ptr<DeviceLinks> links;
    // What the processes have asked for, all of them the same.
    std::set<Edge> edges;
  };

  Pool& pool(const Key& key, c10::Device device);
  // `ranks` exchange the ids of these links, and connect those that begin or end here.
  void connect(DeviceLinks& links, const std::vector<Edge>& edges,
               const std::vector<int64_t>& ranks);
  // Begins these links, which all end here, one after another.
  void connect_own(DeviceLinks& links, const std::vector<Edge>& own,
                   const std::map<Edge, std::string>& ids, const std::vector<int64_t>& ranks,
                   int64_t most_blocks);
  std::string next_name(const std::vector<int64_t>& ranks);

  std::mutex mutex_;  // guards the map against abort(), and is_aborted_
  bool is_aborted_ = false;
  std::map<Key, Pool> pools_;
  std::map<c10::DeviceIndex, LinkBudget> budgets_;  // of the devices of all pools
  std::map<std::vector<int64_t>, int64_t> times_;   // number of calls for these processes
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_CONNECT_LINKS_H_
