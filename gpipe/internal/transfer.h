// Bringing a packet from the device of one stage to that of another.
//
// All of it goes through c10's device-generic streams and events, so that it compiles without CUDA.
#ifndef GPIPE_INTERNAL_TRANSFER_H_
#define GPIPE_INTERNAL_TRANSFER_H_

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "gpipe/internal/packet.h"

namespace gpipe::internal {

// The calling thread's current stream on `device`. For the CPU, which has none, a placeholder.
c10::Stream current_stream(c10::Device device);

// Makes `stream` and its device current on this thread, and restores the former ones on exit.
// Workers compute on the stream on which their caller would, so that the caller's own kernels
// before and after (an optimizer's, say) need no further synchronisation. Nothing happens for the
// CPU.
class StreamScope {
 public:
  explicit StreamScope(c10::Stream stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  c10::Device former_device_;
  c10::Stream former_stream_;
};

// Called by the producing stage as soon as the packet is made: starts the copy of every tensor to
// `target` on a stream of its own, so that it travels while both stages compute. Neither the
// producer's stream nor its thread waits for it; copies from and to the host go through pinned
// memory. Nothing is copied within a device, or between CPU stages.
void depart(Packet& packet, c10::Device target);

// Called by the consuming stage before it uses the packet: its current stream, or on the CPU its
// thread, waits for the copies.
void arrive(Packet& packet, c10::Device device);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TRANSFER_H_
