#include "gpipe/internal/run/staged_transport.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

const c10::Device kHost(c10::kCPU);

bool is_on(const Packet& packet, c10::Device device) {
  return std::all_of(packet.items.begin(), packet.items.end(), [&](const Item& item) {
    return !item.tensor.defined() || item.tensor.device() == device;
  });
}

}  // namespace

void StagedTransport::send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) {
  c10::SmallVector<c10::Device, 4> targets;
  for (const Step::Send& to : sends) {
    targets.push_back(by_host_.at(static_cast<size_t>(to.worker)) ? kHost : device_);
  }
  std::vector<at::Tensor> originals;
  for (size_t k = 0; k < packets.size(); ++k) {
    for (const Item& item : packets[k].items) originals.push_back(item.tensor);
  }
  transfers_.depart_together(packets, targets);
  size_t next = 0;
  for (size_t k = 0; k < packets.size(); ++k) {
    if (targets[k] == kHost) arrive(packets[k], kHost);
    for (Item& item : packets[k].items) {
      const at::Tensor original = std::move(originals[next++]);
      if (targets[k] != kHost) continue;
      at::Tensor laid_out = with_gaps_of(original, item.tensor);
      if (laid_out.is_same(item.tensor)) continue;
      item.tensor = std::move(laid_out);
      item.mark_version();
    }
  }
  beyond_.send(sends, packets);
}

bool StagedTransport::receive(int32_t worker, const std::vector<int32_t>& slots,
                              std::vector<Packet>& packets) {
  if (!beyond_.receive(worker, slots, packets)) return false;
  for (Packet& packet : packets) {
    if (!is_on(packet, device_)) transfers_.depart(packet, device_);
  }
  return true;
}

}  // namespace gpipe::internal
