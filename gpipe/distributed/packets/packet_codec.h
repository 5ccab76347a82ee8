// PacketCodec: a packet of tensors as bytes, and back.
//
// Decoding preserves types, shapes, strides, the place of the first element within a line of memory
// (kernels add up in another order at another place), undefined and empty tensors, tensors that are
// one object or share memory, and all marks. The bytes of small tensors follow the header in one
// message. Large tensors are messages of their own, without a copy at either end. So are all
// tensors on an accelerator, because the host neither reads nor writes their memory.
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

// All byte tensors here are contiguous and have one dimension. The bodies are on the device of the
// packet's tensors; the head is on the CPU.
struct OutgoingPacket {
  at::Tensor head;
  // The packet's own memory, which must not change until it has been sent. On an accelerator, work
  // on the current stream fills it.
  std::vector<at::Tensor> bodies;
  // Version marks of the tensors whose memory the bodies are. On the CPU only, because a sender
  // copies an accelerator's tensors first.
  std::vector<internal::VersionMark> sources;

  // Whether a source has been changed while it was being sent.
  bool is_changed() const;
};

// From this size on, in bytes, a tensor is a message of its own: copying costs more than a message.
constexpr int64_t kAloneFrom = 2 << 20;

// `alone_from`: in bytes, as kAloneFrom; on an accelerator all tensors are messages of their own.
// Throws c10::TypeError for tensors that are not on `device`, not strided, quantized or named.
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
  // `head` begins with OutgoingPacket::head; the bytes behind that are ignored. The tensors use its
  // memory, so it must begin at a line of memory, as LibTorch's own tensors do. Throws
  // DamagedMessage (bytes.h), before it allocates memory, if `head` is not what encode() makes, or
  // if the packet would take more than `limit` bytes. `device`: of the same type as encode()'s; on
  // an accelerator the current stream allocates memory here and fills it in take().
  IncomingPacket(const at::Tensor& head, int64_t limit, c10::Device device = c10::kCPU);

  // The size of the head itself, OutgoingPacket::head, in bytes.
  int64_t head_bytes() const { return head_bytes_; }
  // The tensors still to be filled, in the order and with the sizes of OutgoingPacket::bodies.
  const std::vector<at::Tensor>& bodies() const { return bodies_; }

  // Returns the packet. Called once, when the bodies are filled.
  internal::Packet take();

 private:
  int64_t head_bytes_ = 0;
  std::vector<at::Tensor> bodies_;
  internal::Packet packet_;
  // Tensors with gaps between their elements, and the packed elements that take() copies into them.
  std::vector<std::pair<at::Tensor, at::Tensor>> filled_later_;
};

// A message that only tells the size of the head that follows it. It is for a head that does not
// fit into the memory that its receiver has posted.
constexpr int64_t kAnnouncementBytes = 16;
at::Tensor announce(int64_t head_bytes);
// The announced size, or no value if `message` is a head. Throws DamagedMessage if it is neither,
// or if it announces more than `limit` bytes.
std::optional<int64_t> announced_bytes(const at::Tensor& message, int64_t limit);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_PACKET_CODEC_H_
