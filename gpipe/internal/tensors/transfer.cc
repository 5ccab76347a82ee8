#include "gpipe/internal/tensors/transfer.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/threads/default_generators.h"

namespace gpipe::internal {
namespace {

using c10::impl::VirtualGuardImpl;

void destroy(std::unique_ptr<c10::Event> event, c10::Device device) noexcept {
  try {
    const c10::DeviceGuard guard(device);
    event.reset();
  } catch (const std::exception&) {  // the device is broken
  }
}

// A copy of a view with gaps between its elements keeps the gaps if that takes at most this many
// times the elements' memory, or if it is small. A copy of one column must not take the memory of a
// huge tensor.
constexpr int64_t kMostGaps = 2;
constexpr int64_t kSmallBytes = 64 * 1024;

// Where a tensor begins in a cache line, in bytes. The shorter line of the two devices counts.
int64_t place_in_line(const at::Tensor& tensor, c10::Device target) {
  const uintptr_t line = std::min(line_bytes(tensor.device()), line_bytes(target));
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % line);
}

// Returns the dimensions, those with the largest strides first.
c10::SmallVector<int64_t, 6> by_stride(c10::IntArrayRef strides) {
  c10::SmallVector<int64_t, 6> order(strides.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return order;
}

// The layout of the elements of `layout` without the gaps, beginning at a cache line.
CopyLayout packed(CopyLayout layout) {
  const c10::SmallVector<int64_t, 6> order = by_stride(layout.strides);
  int64_t stride = 1;
  for (size_t k = order.size(); k-- > 0;) {
    int64_t& own = layout.strides[order[k]];
    if (own != 0) own = stride;
    stride *= layout.sizes[k];
  }
  layout.extent = stride;
  layout.offset = 0;
  layout.has_gaps = false;
  return layout;
}

// The layout of a copy. `plain` has elements, and no lazy conjugation or negation. Gaps are kept
// where they take little memory.
CopyLayout layout_for(const at::Tensor& plain, c10::Device target) {
  CopyLayout layout;
  layout.strides.assign(plain.strides().begin(), plain.strides().end());
  const MemoryRange range = memory_range(plain);
  layout.extent = range.end - range.begin;
  const auto item = static_cast<int64_t>(plain.element_size());
  layout.offset = place_in_line(plain, target) / item;
  int64_t elements = 1;
  for (const int64_t d : by_stride(layout.strides)) {
    layout.sizes.push_back(plain.stride(d) == 0 ? 1 : plain.size(d));
    layout.strides_once.push_back(plain.stride(d));
    elements *= layout.sizes.back();
  }
  if (layout.extent <= elements) {
    // A tensor without gaps is copied as one run of memory. A tensor whose elements overlap is,
    // too, because no copy can read less.
    layout.sizes = {layout.extent};
    layout.strides_once = {1};
    return layout;
  }
  layout.has_gaps = layout.extent <= std::max(kMostGaps * elements, kSmallBytes / item);
  return layout.has_gaps ? layout : packed(layout);
}

// Whether a copy can keep the tensor's layout in memory.
bool has_layout(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_nested() &&
         !tensor.is_meta() && !tensor.is_quantized() && !has_names(tensor) &&
         !tensor._is_zerotensor() && tensor.numel() > 0;
}

// Returns the tensor's bits as they are, without its lazy conjugation or negation.
at::Tensor without_lazy_bits(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach();
  if (plain.is_conj()) plain._set_conj(false);
  if (plain.is_neg()) plain._set_neg(false);
  return plain;
}

// The argument `non_blocking` of copies within a device, between two accelerators, or from or to
// pinned memory.
constexpr bool kAtOnce = true;

// Returns a copy in new pinned host memory. pin_memory() would return a pinned tensor as it is, and
// the owner of that tensor may change it before it is read. The allocator of pinned memory keeps
// the block until a copy from it is done.
at::Tensor pinned_copy(const at::Tensor& tensor) {
  const at::Tensor pinned = at::empty(
      tensor.sizes(), tensor.options().device(c10::kCPU).pinned_memory(true).requires_grad(false));
  pinned.copy_(tensor, kAtOnce);
  return pinned;
}

// The part of `memory` where the copy lies, as a tensor with each element once.
at::Tensor place_for(const at::Tensor& memory, const CopyLayout& layout) {
  return layout.has_gaps ? memory.as_strided(layout.sizes, layout.strides_once, layout.offset)
                         : memory.narrow(0, layout.offset, layout.extent).view(layout.sizes);
}

// The copy of `tensor` that lies in `memory` by `layout`, with the lazy bits of `tensor`.
at::Tensor laid_out(const at::Tensor& memory, const CopyLayout& layout, const at::Tensor& tensor) {
  at::Tensor copy =
      detached_alias(memory.as_strided(tensor.sizes(), layout.strides, layout.offset));
  if (tensor.is_conj()) copy._set_conj(true);
  if (tensor.is_neg()) copy._set_neg(true);
  return copy;
}

// A copy with the strides of the tensor and the same place in a cache line, because otherwise
// kernels may add up in another order (alias.h). The host can make gaps only after it has waited
// for the elements. So the elements arrive on the host without gaps, and `gaps` gets the layout
// with gaps.
at::Tensor copied_in_layout(const at::Tensor& tensor, c10::Device target, CopyLayout* gaps) {
  const at::Tensor plain = without_lazy_bits(tensor);
  CopyLayout layout = layout_for(plain, target);
  if (layout.has_gaps && target.is_cpu()) {
    if (gaps != nullptr) *gaps = layout;
    layout = packed(layout);
  }
  const at::Tensor from =
      plain.as_strided(layout.sizes, layout.strides_once, plain.storage_offset());
  // A block of memory begins with a line, on accelerators and in pinned memory.
  const at::Tensor memory =
      at::empty({layout.offset + layout.extent},
                plain.options().device(target).pinned_memory(target.is_cpu()).requires_grad(false));
  const at::Tensor to = place_for(memory, layout);
  if (!plain.is_cpu()) {
    to.copy_(from, kAtOnce);
  } else if (layout.has_gaps) {
    // Between host and device, LibTorch copies only contiguous tensors without a detour that waits.
    to.copy_(pinned_copy(from).to(target, kAtOnce), kAtOnce);
  } else {
    to.copy_(pinned_copy(from), kAtOnce);
  }
  return laid_out(memory, layout, tensor);
}

// Returns a copy with the gaps of `layout` of elements that have arrived without gaps.
at::Tensor with_gaps(const at::Tensor& arrived, const CopyLayout& layout) {
  const c10::NoGradGuard no_grad;
  const at::Tensor memory =
      at::empty({layout.offset + layout.extent}, arrived.options().pinned_memory(false));
  const CopyLayout without = packed(layout);
  place_for(memory, layout)
      .copy_(without_lazy_bits(arrived)
                 .as_strided({without.extent}, {1}, arrived.storage_offset())
                 .view(layout.sizes));
  return laid_out(memory, layout, arrived);
}

// Whether the tensor's elements lie in memory without gaps, from the start of a line on.
bool is_dense_from_a_line(const at::Tensor& tensor, c10::Device target) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg() &&
         place_in_line(tensor, target) == 0;
}

// Copies without making this thread wait. Between host and device that requires pinned host memory.
// `gaps`: as for copied_in_layout(); if null, no gaps are made.
at::Tensor copied(const at::Tensor& tensor, c10::Device target, CopyLayout* gaps = nullptr) {
  c10::NoGradGuard no_grad;
  if (target.is_meta()) {
    // A tensor on meta is made on the current device (meta/meta_devices.h).
    const c10::DeviceGuard guard(target);
    return tensor.is_meta() ? tensor.clone() : tensor.to(target);
  }
  if (tensor.layout() != c10::kStrided) return tensor.to(target);
  const bool with_host = tensor.is_cpu() || target.is_cpu();
  if (!has_layout(tensor)) return tensor.to(target, /*non_blocking=*/!with_host);
  if (!is_dense_from_a_line(tensor, target)) return copied_in_layout(tensor, target, gaps);
  // A dense tensor that begins with a cache line is the usual case. New memory begins with one,
  // too, so a plain copy keeps the layout.
  if (!with_host) return tensor.to(target, kAtOnce);
  if (!tensor.is_contiguous()) return copied_in_layout(tensor, target, gaps);
  const at::Tensor pinned = pinned_copy(tensor);
  return target.is_cpu() ? pinned : pinned.to(target, kAtOnce);
}

// The streams that all pipelines of the process use. A stream that was given to several pipelines
// is listed several times.
struct StreamsInUse {
  std::mutex mutex;
  std::vector<c10::Stream> copies;
  std::vector<c10::Stream> recordings;
};

// The streams in use are never destroyed, because threads may use this object while the process
// ends.
StreamsInUse& streams_in_use() {
  static auto* const streams = new StreamsInUse;
  return *streams;
}

bool contains(const std::vector<c10::Stream>& streams, const c10::Stream& stream) {
  return std::find(streams.begin(), streams.end(), stream) != streams.end();
}

// A stream of the usual priority from the pool of 32, which it gives out in turn. It is one of
// `not_these` only if all of them are.
c10::Stream another_stream(c10::Device device, const std::vector<c10::Stream>& not_these) {
  constexpr int kPool = 32;
  const VirtualGuardImpl impl(device.type());
  c10::Stream stream = impl.getStreamFromGlobalPool(device);
  for (int k = 1; k < kPool && contains(not_these, stream); ++k) {
    stream = impl.getStreamFromGlobalPool(device);
  }
  return stream;
}

void give_back(std::vector<c10::Stream>& streams, const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(streams_in_use().mutex);
  const auto place = std::find(streams.begin(), streams.end(), stream);
  if (place != streams.end()) streams.erase(place);
}

}  // namespace

c10::Stream current_stream(c10::Device device) {
  if (device.is_cpu()) return c10::Stream(c10::Stream::DEFAULT, device);
  return VirtualGuardImpl(device.type()).getStream(device);
}

std::vector<c10::Stream> current_streams(c10::DeviceType type) {
  std::vector<c10::Stream> streams;
  if (type == c10::kCPU) return streams;
  const VirtualGuardImpl impl(type);
  for (c10::DeviceIndex k = 0; k < impl.deviceCount(); ++k) {
    streams.push_back(impl.getStream(c10::Device(type, k)));
  }
  return streams;
}

StreamScope::StreamScope(c10::ArrayRef<c10::Stream> streams, c10::Device device)
    : former_device_(device) {
  for (const c10::Stream& stream : streams) {
    if (stream.device().is_cpu()) continue;
    former_streams_.push_back(VirtualGuardImpl(stream.device_type()).exchangeStream(stream));
  }
  if (!device.is_cpu()) former_device_ = VirtualGuardImpl(device.type()).exchangeDevice(device);
}

StreamScope::~StreamScope() {
  // This call is unchecked on purpose. A thread that has used no device is on device 0. The checked
  // call would make a context there, which takes memory for nothing.
  if (!former_device_.is_cpu()) {
    VirtualGuardImpl(former_device_.type()).uncheckedSetDevice(former_device_);
  }
  for (const c10::Stream& stream : former_streams_) {
    VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  }
}

std::shared_ptr<c10::Event> record_event(const c10::Stream& stream) {
  const c10::DeviceGuard guard(stream.device());
  std::shared_ptr<c10::Event> event(new c10::Event(stream.device_type()),
                                    [device = stream.device()](c10::Event* owned) {
                                      destroy(std::unique_ptr<c10::Event>(owned), device);
                                    });
  event->record(stream);
  return event;
}

void wait_for_event(const c10::Event& event, const c10::Stream& stream) {
  const c10::DeviceGuard guard(stream.device());
  event.block(stream);
}

void follow(const c10::Stream& later, const c10::Stream& earlier) {
  if (later != earlier) wait_for_event(*record_event(earlier), later);
}

void use_on(const at::Tensor& tensor, const c10::Stream& stream) {
  if (!tensor.defined() || tensor.device() != stream.device() || !tensor.has_storage()) return;
  if (stream.device().is_cpu()) return;
  // Waits while a graph is recorded: LibTorch's allocator attributes every use that any thread
  // notes meanwhile to the recording, and forgets it if the block is freed before the recording
  // ends.
  const std::lock_guard<std::recursive_mutex> lock(default_generators_mutex());
  VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

c10::Stream take_stream_for_copies(c10::Device device) {
  StreamsInUse& in_use = streams_in_use();
  const std::lock_guard<std::mutex> lock(in_use.mutex);
  const c10::Stream stream = another_stream(device, in_use.recordings);
  in_use.copies.push_back(stream);
  return stream;
}

void give_back_stream_for_copies(const c10::Stream& stream) {
  give_back(streams_in_use().copies, stream);
}

c10::Stream take_stream_for_recordings(c10::Device device) {
  const c10::Stream here = current_stream(device);
  StreamsInUse& in_use = streams_in_use();
  const std::lock_guard<std::mutex> lock(in_use.mutex);
  std::vector<c10::Stream> not_these = {here};
  not_these.insert(not_these.end(), in_use.copies.begin(), in_use.copies.end());
  std::vector<c10::Stream> nor_these = not_these;
  nor_these.insert(nor_these.end(), in_use.recordings.begin(), in_use.recordings.end());
  c10::Stream stream = another_stream(device, nor_these);
  // If every stream is taken, a stream of another recording is better than a stream on which
  // packets travel.
  if (contains(nor_these, stream)) stream = another_stream(device, not_these);
  if (stream == here) stream = another_stream(device, {here});
  TORCH_CHECK(stream != here, "there is no stream of ", device,
              " to record on except the current one");
  in_use.recordings.push_back(stream);
  return stream;
}

void give_back_stream_for_recordings(const c10::Stream& stream) {
  give_back(streams_in_use().recordings, stream);
}

Transfers::~Transfers() {
  if (!own_streams_) return;
  for (const Lane& lane : lanes_) {
    for (const c10::Stream& stream : {lane.from, lane.to}) {
      if (!stream.device().is_cpu()) give_back_stream_for_copies(stream);
    }
  }
}

Transfers::Lane Transfers::lane(c10::Device source, c10::Device target) {
  if (!own_streams_) return {source, target, current_stream(source), current_stream(target)};
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Lane& lane : lanes_) {
    if (lane.source == source && lane.target == target) return lane;
  }
  auto stream_on = [](c10::Device device) {
    if (device.is_cpu()) return current_stream(device);
    return take_stream_for_copies(device);
  };
  lanes_.push_back({source, target, stream_on(source), stream_on(target)});
  return lanes_.back();
}

void Transfers::depart(Packet& packet, c10::Device target) {
  c10::SmallVector<c10::Stream, 2> busy;
  auto add_busy = [&](const c10::Stream& stream) {
    if (std::find(busy.begin(), busy.end(), stream) == busy.end()) busy.push_back(stream);
  };
  for (size_t k = 0; k < packet.items.size(); ++k) {
    Item& item = packet.items[k];
    if (!item.tensor.defined()) continue;
    const c10::Device source = item.tensor.device();
    if (source.is_cpu() && target.is_cpu()) continue;
    if (source == target) {
      add_busy(current_stream(source));
      continue;
    }
    const Lane lane = this->lane(source, target);
    if (!source.is_cpu()) {
      // The copy waits for the work that made the tensor and for nothing else.
      follow(lane.from, current_stream(source));
      use_on(item.tensor, lane.from);
    }
    // Both scopes are needed: a copy between devices makes the current streams of both devices wait
    // for each other, so these must be the lane's streams.
    StreamScope to(lane.to);
    StreamScope from(lane.from);
    CopyLayout gaps;
    item.tensor = copied(item.tensor, target, &gaps);
    item.mark_version();
    if (gaps.has_gaps) packet.gaps.push_back({k, std::move(gaps)});
    add_busy(target.is_cpu() ? lane.from : lane.to);
  }
  for (const c10::Stream& stream : busy) packet.ready.push_back(record_event(stream));
}

void Transfers::depart_together(std::vector<Packet>& packets, c10::ArrayRef<c10::Device> targets) {
  struct Staying {
    const c10::StorageImpl* storage;
    c10::Device device;
  };
  c10::SmallVector<Staying, 2> staying;
  c10::SmallVector<const c10::StorageImpl*, 2> copied;
  for (size_t k = 0; k < packets.size(); ++k) {
    for (const Item& item : packets[k].items) {
      const c10::StorageImpl* storage = storage_of(item.tensor);
      if (storage == nullptr || item.tensor.device().is_cpu()) continue;
      if (item.tensor.device() == targets[k]) {
        staying.push_back({storage, targets[k]});
      } else {
        copied.push_back(storage);
      }
    }
  }
  for (size_t k = 0; k < packets.size(); ++k) depart(packets[k], targets[k]);
  for (const Staying& here : staying) {
    if (std::find(copied.begin(), copied.end(), here.storage) == copied.end()) continue;
    let_follow(current_stream(here.device));
  }
}

void Transfers::copy_into(const at::Tensor& target, const at::Tensor& source) {
  const c10::NoGradGuard no_grad;
  const Lane lane = this->lane(source.device(), target.device());
  if (!source.is_cpu()) {
    follow(lane.from, current_stream(source.device()));
    use_on(source, lane.from);
  }
  if (!target.is_cpu()) {
    follow(lane.to, current_stream(target.device()));  // the current stream may still read `target`
    use_on(target, lane.to);
  }
  {
    StreamScope to(lane.to);
    StreamScope from(lane.from);
    const bool by_host = source.is_cpu() || target.is_cpu();
    const at::Tensor arriving =
        by_host ? copied(source.detach(), target.device()) : source.detach();
    if (target.is_cpu()) record_event(lane.from)->synchronize();
    at::Tensor values = target;
    values.copy_(arriving, /*non_blocking=*/true);
  }
  if (!target.is_cpu()) follow(current_stream(target.device()), lane.to);
}

void Transfers::let_follow(const c10::Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Lane& lane : lanes_) {
    if (lane.source == stream.device()) follow(stream, lane.from);
  }
}

void arrive(Packet& packet, c10::Device device) {
  if (packet.ready.empty()) return;
  if (device.is_cpu()) {
    for (const auto& event : packet.ready) event->synchronize();
    packet.ready.clear();
    for (const Packet::Gaps& gaps : packet.gaps) {
      Item& item = packet.items[gaps.item];
      item.tensor = with_gaps(item.tensor, gaps.layout);
      item.mark_version();
    }
    packet.gaps.clear();
    return;
  }
  const c10::Stream stream = current_stream(device);
  for (const auto& event : packet.ready) wait_for_event(*event, stream);
  packet.ready.clear();
  for (const Item& item : packet.items) use_on(item.tensor, stream);
}

}  // namespace gpipe::internal
