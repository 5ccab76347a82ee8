#include "gpipe/internal/transfer.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "gpipe/internal/alias.h"

namespace gpipe::internal {
namespace {

using c10::impl::VirtualGuardImpl;

std::shared_ptr<c10::Event> recorded(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

// Copies without making this thread wait: between host and device that takes pinned host memory.
at::Tensor copied(const at::Tensor& tensor, c10::Device target) {
  c10::NoGradGuard no_grad;
  if (tensor.layout() != c10::kStrided) return tensor.to(target);
  if (target.is_cpu()) {
    at::Tensor host =
        at::empty_like(tensor, tensor.options().device(c10::kCPU).pinned_memory(true));
    return host.copy_(tensor, /*non_blocking=*/true);
  }
  // The allocator of pinned memory keeps the block until the copy is done.
  const at::Tensor source = tensor.is_cpu() ? tensor.pin_memory() : tensor;
  return source.to(target, /*non_blocking=*/true);
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
      continue;
    }
    // The copy has a stream of its own, on the producer's side if that has streams.
    const c10::Device carrier = source.is_cpu() ? target : source;
    VirtualGuardImpl impl(carrier.type());
    const c10::Stream copy = impl.getStreamFromGlobalPool(carrier);
    if (!source.is_cpu()) {
      // It waits for what made the tensor and for nothing else.
      recorded(current_stream(source))->block(copy);
      if (item.tensor.has_storage()) {
        impl.recordDataPtrOnStream(item.tensor.storage().data_ptr(), copy);
      }
    }
    StreamScope scope(copy);
    item.tensor = copied(item.tensor, target);
    item.version = version_of(item.tensor);
    packet.ready.push_back(recorded(copy));
  }
}

void arrive(Packet& packet, c10::Device device) {
  if (packet.ready.empty()) return;
  if (device.is_cpu()) {
    for (const auto& event : packet.ready) event->synchronize();
    packet.ready.clear();
    return;
  }
  const c10::Stream stream = current_stream(device);
  for (const auto& event : packet.ready) event->block(stream);
  packet.ready.clear();
  VirtualGuardImpl impl(device.type());
  for (const Item& item : packet.items) {
    if (item.tensor.defined() && item.tensor.device() == device && item.tensor.has_storage()) {
      impl.recordDataPtrOnStream(item.tensor.storage().data_ptr(), stream);
    }
  }
}

}  // namespace gpipe::internal
