#include "gpipe/internal/run/staged_transport.h"

#include <c10/core/Event.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

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
  transfers_.depart_together(packets, targets);
  // A layer may change in place what it has handed on, so its next work comes behind the copies.
  for (size_t k = 0; k < packets.size(); ++k) {
    if (targets[k] != kHost) continue;
    for (const auto& copied : packets[k].ready) copied->block(current_stream(device_));
  }
  beyond_.send(sends, packets);
}

bool StagedTransport::receive(int32_t worker, const std::vector<int32_t>& slots,
                              std::vector<Packet>& packets) {
  if (!beyond_.receive(worker, slots, packets)) return false;
  for (Packet& packet : packets) {
    if (is_on(packet, device_)) continue;
    arrive(packet, kHost);  // it may come from this process, and still be on its way
    transfers_.depart(packet, device_);
  }
  return true;
}

}  // namespace gpipe::internal
