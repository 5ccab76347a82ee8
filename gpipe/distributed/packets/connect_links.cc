#include "gpipe/distributed/packets/connect_links.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "gpipe/distributed/packets/link_rounds.h"
#include "gpipe/runtime/bytes.h"
#include "gpipe/runtime/exit_gate.h"

namespace gpipe::distributed {

static auto fields(Edge& edge) { return std::tie(edge.from, edge.to, edge.lane); }

namespace {

bool is_set(const Edge& edge) { return edge.from < 0; }

// How long connecting all links may take. It may take long, because NCCL examines all of a
// machine's devices and networks for each link.
constexpr std::chrono::minutes kLimit{2};

void check_devices(const LinkKind& kind, const std::vector<int64_t>& ranks,
                   const std::vector<std::string>& identities) {
  std::map<std::string, int64_t> first;
  for (size_t k = 0; k < ranks.size(); ++k) {
    const auto [other, is_new] = first.emplace(identities.at(k), ranks[k]);
    TORCH_CHECK_VALUE(
        is_new, "ranks ", other->second, " and ", ranks[k],
        " are on the same device, and GPIPE_DEVICE_LINKS=", kind.name(),
        " cannot link two processes on one device: give each process its own device, "
        "GPipeOptions::devices({c10::Device(c10::kCUDA, number of this process on "
        "its machine)}), or unset GPIPE_DEVICE_LINKS. Where they are to share it, as in a test, "
        "set NCCL_HOSTID to another text in each process");
  }
}

// The edges that begin or end at `rank`, in the order in which it connects them.
std::vector<Edge> own_order(const std::vector<Edge>& edges, int64_t rank) {
  std::vector<Edge> own;
  for (const std::vector<Edge>& round : link_rounds(edges)) {
    std::copy_if(round.begin(), round.end(), std::back_inserter(own), [&](const Edge& edge) {
      return edge.from == rank || edge.to == rank || is_set(edge);
    });
  }
  return own;
}

// Which end of the edge's link `rank` is.
LinkEnd end_of(const Edge& edge, int64_t rank, const std::vector<int64_t>& ranks) {
  if (!is_set(edge)) {
    return DeviceLinks::end_of(edge.from == rank ? DeviceLink::End::kSends
                                                 : DeviceLink::End::kReceives);
  }
  LinkEnd end;
  end.member = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  end.members = static_cast<int64_t>(ranks.size());
  end.is_one_way = false;
  return end;
}

// What the processes tell each other before they connect links.
struct Offer {
  std::vector<std::pair<Edge, std::string>> ids;  // of the links for which the process makes them
  LinkLoad load;
};
auto fields(Offer& offer) { return std::tie(offer.ids, offer.load); }

}  // namespace

int64_t device_number(const std::string& identity) {
  const auto number = static_cast<int64_t>(std::hash<std::string>()(identity));
  return number == 0 ? 1 : number;
}

DeviceLinks& LinkPools::connect(const MessagePlan& plan, c10::Device device) {
  std::vector<int64_t> ranks = plan.rank_of_worker();
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const std::vector<std::string> identities =
      others_.exchange(next_name(ranks) + "/devices", kind_.identity(device), ranks);
  check_devices(kind_, ranks, identities);
  std::vector<int64_t> devices;
  for (const std::string& identity : identities) devices.push_back(device_number(identity));
  return connect(ranks, devices, plan.edges(), device);
}

DeviceLinks& LinkPools::connect(const std::vector<int64_t>& ranks,
                                const std::vector<int64_t>& devices, const std::vector<Edge>& edges,
                                c10::Device device) {
  Pool& pool = this->pool({ranks, devices}, device);
  std::vector<Edge> missing;
  for (const Edge& edge : edges) {
    if (pool.edges.insert(edge).second) missing.push_back(edge);
  }
  if (!missing.empty()) connect(*pool.links, missing, ranks);
  return *pool.links;
}

void LinkPools::settle() noexcept {
  try {
    for (const auto& [key, pool] : pools_) pool.links->settle();
  } catch (const std::exception&) {  // the device is broken, which its next use says
  }
}

void LinkPools::abort() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_aborted_ = true;
  for (const auto& [key, pool] : pools_) pool.links->abort();
}

std::string LinkPools::next_name(const std::vector<int64_t>& ranks) {
  std::string name = "links/" + std::to_string(times_[ranks]++);
  for (const int64_t rank : ranks) name += "/" + std::to_string(rank);
  return name;
}

LinkPools::Pool& LinkPools::pool(const Key& key, c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pools_.find(key);
  if (found != pools_.end()) return found->second;
  Pool pool;
  pool.links =
      std::make_unique<DeviceLinks>(kind_, device, [fail = others_.fail](const auto& what) {
        try {
          fail(what);
        } catch (const std::exception&) {  // the call in progress throws this, too
        }
      });
  if (is_aborted_) pool.links->abort();
  return pools_.emplace(key, std::move(pool)).first->second;
}

void LinkPools::connect(DeviceLinks& links, const std::vector<Edge>& edges,
                        const std::vector<int64_t>& ranks) {
  const std::vector<Edge> own = own_order(edges, others_.rank);
  std::vector<LinkEnd> ends;
  for (const Edge& edge : own) ends.push_back(end_of(edge, others_.rank, ranks));
  const c10::Device device = links.device();
  LinkBudget& budget = budgets_.try_emplace(device.index(), kind_, device).first->second;
  const int64_t most_blocks = budget.add(ends);
  Offer offer;
  offer.load = budget.load();
  for (const Edge& edge : edges) {
    if ((is_set(edge) ? ranks.front() : edge.from) != others_.rank) continue;
    offer.ids.emplace_back(edge, kind_.new_id());
  }
  std::map<Edge, std::string> ids;
  std::vector<LinkLoad> loads;
  for (const std::string& value :
       others_.exchange(next_name(ranks) + "/ids", internal::to_bytes(offer), ranks)) {
    const auto given = internal::from_bytes<Offer>(value, "the ids of links");
    ids.insert(given.ids.begin(), given.ids.end());
    loads.push_back(given.load);
  }
  try {
    connect_own(links, own, ids, ranks, most_blocks);
  } catch (const std::exception& error) {
    links.abort();
    others_.check();
    others_.fail("connecting the links between devices failed: " + std::string(error.what()));
    throw;
  }
  if (others_.say == nullptr) return;
  const auto most =
      std::max_element(loads.begin(), loads.end(), [](const LinkLoad& a, const LinkLoad& b) {
        return std::tie(a.bytes, a.blocks) < std::tie(b.bytes, b.blocks);
      });
  others_.say("between devices, rank " + std::to_string(ranks[most - loads.begin()]) +
              " has most: " + to_text(*most));
}

void LinkPools::connect_own(DeviceLinks& links, const std::vector<Edge>& own,
                            const std::map<Edge, std::string>& ids,
                            const std::vector<int64_t>& ranks, int64_t most_blocks) {
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  // A process connects its links one after another, in the order of the rounds: connecting a link
  // may wait for all work on the device, and so for the first message of another link.
  for (const Edge& edge : own) {
    const std::string& id = ids.at(edge);
    if (is_set(edge)) {
      links.begin_set(ranks, end_of(edge, others_.rank, ranks), id, most_blocks);
    } else if (edge.from == others_.rank) {
      links.begin(edge, DeviceLink::End::kSends, id, most_blocks);
    } else {
      links.begin(edge, DeviceLink::End::kReceives, id, most_blocks);
    }
    while (!links.are_connected()) {
      others_.check();
      if (std::chrono::steady_clock::now() > limit) {
        throw std::runtime_error("the other ends did not come within two minutes");
      }
      const internal::WaitScope waits;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace gpipe::distributed
