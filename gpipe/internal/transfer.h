// Bringing a packet from the device of one stage to that of another.
//
// All of it goes through c10's device-generic streams and events, so that it compiles without CUDA.
#ifndef GPIPE_INTERNAL_TRANSFER_H_
#define GPIPE_INTERNAL_TRANSFER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <mutex>
#include <vector>

#include "gpipe/internal/packet.h"

namespace gpipe::internal {

// The calling thread's current stream on `device`. For the CPU, which has none, a placeholder.
c10::Stream current_stream(c10::Device device);

// Those of all devices of this type, by index; none for the CPU.
std::vector<c10::Stream> current_streams(c10::DeviceType type);

// Makes `device` and each of `streams`, one for a device, current on this thread, and restores the
// former ones on exit. Nothing happens for the CPU. Workers compute on the streams on which their
// caller would, so that the caller's own kernels before and after (an optimizer's, say) need no
// further synchronization: on their stage's device, and on any other that a layer or a loss uses.
class StreamScope {
 public:
  StreamScope(c10::ArrayRef<c10::Stream> streams, c10::Device device);
  // The stream and its device.
  explicit StreamScope(c10::Stream stream) : StreamScope(stream, stream.device()) {}
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  c10::SmallVector<c10::Stream, 4> former_streams_;
  c10::Device former_device_;
};

// What `later` is given from now on waits for what `earlier` has been given. Nothing happens if
// they are the same stream. Both belong to accelerators.
void follow(const c10::Stream& later, const c10::Stream& earlier);

// Makes the allocator keep the tensor's memory until `stream` is done with what it has been given.
// Nothing happens for the CPU, and where the tensor is on another device.
void use_on(const at::Tensor& tensor, const c10::Stream& stream);

// The streams on which a pipeline's packets travel: for each pair of devices one stream on either
// side, and none for the host. They are taken once and kept, since an allocator keeps the freed
// blocks of each stream apart.
//
// Thread-safe.
class Transfers {
 public:
  // Called by the producing stage as soon as the packet is made: starts the copy of every tensor to
  // `target`, so that it travels while both stages compute. Neither side's current stream waits for
  // it, nor does this thread; copies from and to the host go through pinned memory. Nothing is
  // copied within a device, or between CPU stages.
  void depart(Packet& packet, c10::Device target);

  // The same for all packets that leave a stage at a time, each to its target. Where a copy reads
  // memory that also goes to a stage on the same device, without one, the current stream there does
  // wait for the copy: that memory may be changed in place, a gradient by adding to it.
  void depart_together(std::vector<Packet>& packets, c10::ArrayRef<c10::Device> targets);

  // What `stream` is given from now on waits for the copies that read its device's memory. After a
  // run the caller may change there what a stage only handed on.
  void let_follow(const c10::Stream& stream);

 private:
  struct Lane {
    c10::Device source;
    c10::Device target;
    c10::Stream from;  // reads
    c10::Stream to;    // has the copies' memory, and is done with a copy when all of it has arrived
  };
  Lane lane(c10::Device source, c10::Device target);

  std::mutex mutex_;
  std::vector<Lane> lanes_;  // guarded by mutex_; a few
};

// Called by the consuming stage before it uses the packet: its current stream, or on the CPU its
// thread, waits for the copies.
void arrive(Packet& packet, c10::Device device);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TRANSFER_H_
