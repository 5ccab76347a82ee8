#include "gpipe/internal/transfer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace gpipe::internal {
namespace {

using c10::impl::VirtualGuardImpl;

std::shared_ptr<c10::Event> recorded(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

}  // namespace

c10::Stream current_stream(c10::Device device) {
  if (device.is_cpu()) return c10::Stream(c10::Stream::DEFAULT, device);
  return VirtualGuardImpl(device.type()).getStream(device);
}

StreamScope::StreamScope(c10::Stream stream)
    : former_device_(stream.device()), former_stream_(stream) {
  if (stream.device().is_cpu()) return;
  VirtualGuardImpl impl(stream.device_type());
  former_device_ = impl.exchangeDevice(stream.device());
  former_stream_ = impl.exchangeStream(stream);
}

StreamScope::~StreamScope() {
  if (former_stream_.device().is_cpu()) return;
  VirtualGuardImpl impl(former_stream_.device_type());
  impl.exchangeStream(former_stream_);
  impl.setDevice(former_device_);
}

void depart(Packet& packet, c10::Device target) {
  for (Item& item : packet.items) {
    if (!item.tensor.defined()) continue;
    const c10::Device source = item.tensor.device();
    if (source.is_cpu() && target.is_cpu()) continue;
    if (source == target) {
      packet.ready.push_back(recorded(current_stream(source)));
    } else if (target.is_cpu()) {
      item.tensor = item.tensor.to(target);  // waits: the host has no stream to wait on later
    } else if (source.is_cpu()) {
      item.tensor = item.tensor.to(target);
      packet.ready.push_back(recorded(current_stream(target)));
    } else {
      // The copy waits for what made the tensor and for nothing else.
      VirtualGuardImpl impl(source.type());
      const c10::Stream compute = current_stream(source);
      const c10::Stream copy = impl.getStreamFromGlobalPool(source);
      recorded(compute)->block(copy);
      StreamScope scope(copy);
      impl.recordDataPtrOnStream(item.tensor.storage().data_ptr(), copy);
      item.tensor = item.tensor.to(target, /*non_blocking=*/true);
      packet.ready.push_back(recorded(copy));
    }
  }
}

void arrive(Packet& packet, c10::Device device) {
  if (packet.ready.empty()) return;
  const c10::Stream stream = current_stream(device);
  for (const auto& event : packet.ready) event->block(stream);
  packet.ready.clear();
  VirtualGuardImpl impl(device.type());
  for (const Item& item : packet.items) {
    if (item.tensor.defined() && item.tensor.device() == device) {
      impl.recordDataPtrOnStream(item.tensor.storage().data_ptr(), stream);
    }
  }
}

}  // namespace gpipe::internal
