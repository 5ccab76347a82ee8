// Transfers: bring packets from the device of one stage to that of another.
//
// Transfers use only c10's device-generic streams and events, so this unit compiles without CUDA.
#ifndef GPIPE_INTERNAL_TENSORS_TRANSFER_H_
#define GPIPE_INTERNAL_TENSORS_TRANSFER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <mutex>
#include <vector>

#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

// The calling thread's current stream on `device`; a placeholder for the CPU, which has no streams.
c10::Stream current_stream(c10::Device device);

// The current streams of all devices of this type, by device index; none for the CPU.
std::vector<c10::Stream> current_streams(c10::DeviceType type);

// Makes `device` and each of `streams` (one per device) current on this thread, and restores the
// previous ones on exit. No effect for the CPU. Workers compute on the streams on which their
// caller would, both on their stage's device and on any other device that a layer or a loss uses.
// So the caller's own kernels before and after (e.g. those of an optimizer) need no further
// synchronization.
class StreamScope {
 public:
  StreamScope(c10::ArrayRef<c10::Stream> streams, c10::Device device);
  // Makes this stream and its device current.
  explicit StreamScope(c10::Stream stream) : StreamScope(stream, stream.device()) {}
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  c10::SmallVector<c10::Stream, 4> former_streams_;
  c10::Device former_device_;
};

// record_event() returns an event behind what was put on `stream` so far. wait_for_event() makes
// what is put on `stream` from now on wait for the event. The streams belong to accelerators.
// c10::Event makes its device current, and then the thread's former device again: under LibTorch
// 2.11 in each call, later where an event is destroyed. On a thread that has used no device, the
// former device is GPU 0, which then gets a context of half a gigabyte for nothing. These functions
// first make the event's device current by a guard, which restores the former device without a
// context.
std::shared_ptr<c10::Event> record_event(const c10::Stream& stream);
void wait_for_event(const c10::Event& event, const c10::Stream& stream);

// Makes work that is put on `later` from now on wait for the work that was put on `earlier` before.
// No effect if both are the same stream. Both streams belong to accelerators.
void follow(const c10::Stream& later, const c10::Stream& earlier);

// Makes the allocator keep the tensor's memory until `stream` has finished what was put on it so
// far. No effect for the CPU, or if the tensor is on another device. While another thread records a
// graph, use_on() waits until the recording is done (default_generators.h).
void use_on(const at::Tensor& tensor, const c10::Stream& stream);

// Takes a stream of an accelerator for packets to travel on, until it is given back. It is not a
// stream on which graphs are recorded, unless all streams are.
c10::Stream take_stream_for_copies(c10::Device device);
void give_back_stream_for_copies(const c10::Stream& stream);

// Takes a stream of an accelerator to record graphs on, until it is given back. It is never the
// current stream. Unless all others are taken, it is neither a stream on which packets travel nor
// one that was taken for other recordings: kernels that are launched there meanwhile, or ordered
// with it, would be recorded, too. It has the usual priority, because replays keep the priority of
// the recording, and would overtake stages that run kernel by kernel. Throws c10::Error if there is
// no such stream.
c10::Stream take_stream_for_recordings(c10::Device device);
void give_back_stream_for_recordings(const c10::Stream& stream);

// The streams on which a pipeline's packets travel: for each pair of devices, one stream on either
// side (none on the host). The streams are taken once and kept, because an allocator keeps the
// freed blocks of each stream apart.
//
// Thread-safety: thread-safe.
class Transfers {
 public:
  // Without `own_streams`, copies run on the current streams of the thread that starts them, on
  // both sides. So these streams wait for each other.
  explicit Transfers(bool own_streams = true) : own_streams_(own_streams) {}
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Called by the producing stage as soon as the packet is made. Starts the copy of every tensor to
  // `target`, so that it travels while both stages compute. Neither side's current stream waits for
  // the copy, nor does this thread. Copies from and to the host go through pinned memory. Nothing
  // is copied within a device or between CPU stages.
  void depart(Packet& packet, c10::Device target);

  // Does what depart() does for all packets that leave a stage at one time, each to its target. If
  // a copy reads memory that also goes, without a copy, to a stage on the same device, the current
  // stream there waits for the copy: that memory may be changed in place, e.g. when a gradient is
  // added to it.
  void depart_together(std::vector<Packet>& packets, c10::ArrayRef<c10::Device> targets);

  // Copies the values of `source` into `target`, a tensor of the same shape on another device that
  // belongs to no graph. Work that is put on the current stream of the target's device from now on
  // sees the values. The source's current stream does not wait for the copy (see let_follow()). Nor
  // does this thread, unless the target is on the host.
  void copy_into(const at::Tensor& target, const at::Tensor& source);

  // Makes work that is put on `stream` from now on wait for the copies that read memory of its
  // device. After a run the caller may change memory there that a stage only passed on.
  void let_follow(const c10::Stream& stream);

 private:
  struct Lane {
    c10::Device source;
    c10::Device target;
    c10::Stream from;  // the stream that reads the source
    c10::Stream to;    // the stream that owns the copies' memory; done when the whole copy is
  };
  Lane lane(c10::Device source, c10::Device target);

  const bool own_streams_;
  std::mutex mutex_;
  std::vector<Lane> lanes_;  // guarded by mutex_; only a few lanes
};

// Called by the consuming stage before it uses the packet. Its current stream (on the CPU: its
// thread) waits for the copies. On the CPU it then makes the gaps between the elements of views. A
// copy on an accelerator has these gaps from the start.
void arrive(Packet& packet, c10::Device device);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_TRANSFER_H_
