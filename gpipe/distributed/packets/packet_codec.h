// PacketCodec: a packet of tensors as bytes, and back.
//
// What arrives is what was sent: types, shapes, strides, the place of the first element within a
// line of memory (kernels add up in another order at another one), undefined and empty tensors,
// tensors that are one object or share memory, and all marks. Bytes of tensors follow the header in
// one message; those of large tensors travel as messages of their own, without a copy at either
// end. So do all of an accelerator's, whose memory a host neither reads nor writes.
#ifndef GPIPE_DISTRIBUTED_PACKETS_PACKET_CODEC_H_
#define GPIPE_DISTRIBUTED_PACKETS_PACKET_CODEC_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/version_mark.h"

namespace gpipe::distributed {

// All tensors of bytes here are contiguous and of one dimension; the bodies are where the packet's
// tensors are, the rest is on the CPU.
struct OutgoingPacket {
  at::Tensor head;
  // The packet's own memory, which nobody may change until it has been sent. On an accelerator what
  // has been put on the current stream fills it.
  std::vector<at::Tensor> bodies;
  // Of the tensors behind the bodies, on the CPU only: whoever sends an accelerator's copies them
  // first.
  std::vector<internal::VersionMark> sources;

  // Whether somebody has changed a source while it was being sent.
  bool is_changed() const;
};

// Tensors from this size on travel alone: copying them costs more than another message.
constexpr int64_t kAloneFrom = 2 << 20;

// Throws c10::TypeError for tensors that are not on `device`, not strided, quantized or named. On
// an accelerator all tensors travel alone.
OutgoingPacket encode(const internal::Packet& packet, int64_t alone_from = kAloneFrom,
                      c10::Device device = c10::kCPU);

// One packet that arrives.
//
// Example:
//   IncomingPacket incoming(head, limit);
//   for (const at::Tensor& body : incoming.bodies()) receive_into(body);
//   Packet packet = incoming.take();
class IncomingPacket {
 public:
  // `head` holds the head; what follows it is ignored. Its memory becomes that of the tensors, so
  // it must begin at a line of memory, as LibTorch's own tensors do. Throws DamagedMessage
  // (bytes.h) if it is not what encode() makes, or if the packet would take more than `limit` bytes
  // of memory: before it takes any. `device`: as encode()'s, by type; on an accelerator memory is
  // taken, and with take() filled, for the current stream.
  IncomingPacket(const at::Tensor& head, int64_t limit, c10::Device device = c10::kCPU);

  // The bytes of the head itself, OutgoingPacket::head.
  int64_t head_bytes() const { return head_bytes_; }
  // What is still to be filled, in the order of OutgoingPacket::bodies, each of the same size.
  const std::vector<at::Tensor>& bodies() const { return bodies_; }

  // Called once, when they are filled.
  internal::Packet take();

 private:
  int64_t head_bytes_ = 0;
  std::vector<at::Tensor> bodies_;
  internal::Packet packet_;
  // Tensors with gaps, and what fills them.
  std::vector<std::pair<at::Tensor, at::Tensor>> filled_later_;
};

// A message that says nothing but how long the head is that follows it: for a head that does not
// fit into what its receiver has ready.
constexpr int64_t kAnnouncementBytes = 16;
at::Tensor announce(int64_t head_bytes);
// What it says; none if this is a head. Throws DamagedMessage if it is neither, or announces more
// than `limit`.
std::optional<int64_t> announced_bytes(const at::Tensor& message, int64_t limit);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_PACKET_CODEC_H_
