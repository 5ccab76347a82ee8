#include "gpipe/internal/processes/parcel_way.h"

#include <ATen/ops/empty.h>

#include <cstddef>

#include "gpipe/internal/tensors/brought_to.h"

namespace gpipe::internal {

using Parcel = Processes::Parcel;

ParcelWay::ParcelWay(const World& world, const std::vector<int64_t>& ranks,
                     const std::vector<LinkedProcesses::Direction>& directions, c10::Device device)
    : world_(world), device_(device) {
  auto* const linked = dynamic_cast<LinkedProcesses*>(world.processes().get());
  if (linked != nullptr) links_ = linked->links(ranks, directions, device);
}

ParcelWay ParcelWay::between_replicas(const World& world, c10::Device device) {
  std::vector<int64_t> ranks;
  for (int64_t replica = 0; replica < world.replicas(); ++replica) {
    ranks.push_back(world.rank_of(replica, world.process()));
  }
  return ParcelWay(world, ranks, /*directions=*/{}, device);
}

void ParcelWay::move(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives) const {
  if (links_ != nullptr) return links_->move(sends, receives);
  if (device_.is_cpu()) return world_.processes()->move(sends, receives);
  std::vector<at::Tensor> different;  // a message may go to several processes
  for (const Parcel& parcel : sends) {
    if (different.empty() || !different.back().is_same(parcel.bytes)) {
      different.push_back(parcel.bytes);
    }
  }
  const std::vector<at::Tensor> copies = brought_to(c10::kCPU, different);
  std::vector<Parcel> from_host;
  size_t copy = 0;
  for (const Parcel& parcel : sends) {
    if (!different[copy].is_same(parcel.bytes)) ++copy;
    from_host.push_back({parcel.process, copies[copy]});
  }
  std::vector<Parcel> to_host;
  const c10::TensorOptions pinned = c10::TensorOptions(c10::kByte).pinned_memory(true);
  for (const Parcel& parcel : receives) {
    to_host.push_back({parcel.process, at::empty({parcel.bytes.numel()}, pinned)});
  }
  world_.processes()->move(from_host, to_host);
  for (size_t k = 0; k < receives.size(); ++k) {
    at::Tensor bytes = receives[k].bytes;
    bytes.copy_(to_host[k].bytes, /*non_blocking=*/true);
  }
}

}  // namespace gpipe::internal
