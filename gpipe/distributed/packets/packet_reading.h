// read_description: what the head of a packet says, read and checked before any memory is
// allocated.
#ifndef GPIPE_DISTRIBUTED_PACKETS_PACKET_READING_H_
#define GPIPE_DISTRIBUTED_PACKETS_PACKET_READING_H_

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "gpipe/distributed/packets/packet_format.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::distributed {

// Describes a piece of memory; several tensors may be views into it. Sizes and offsets are in
// bytes.
struct PartDescription {
  Place place = Place::kInline;
  int64_t bytes = 0;
  int64_t shift = 0;       // offset of its first byte within a line of memory (line_of())
  int64_t begin = 0;       // where it begins in the head
  int64_t travelling = 0;  // how many bytes are sent: fewer than `bytes` if it is packed
  uint32_t storage_number = 0;
};

struct TensorDescription {
  uint32_t part = 0;
  c10::ScalarType type = c10::ScalarType::Undefined;
  uint8_t flags = 0;
  int64_t offset = 0;  // offset of its first element in its part, in bytes
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
  int64_t extent = 0;        // from its first element to the end of its last, in bytes
  int64_t unique_bytes = 0;  // the bytes of its elements, without repetitions

  int64_t element() const { return static_cast<int64_t>(c10::elementSize(type)); }
};

struct ItemDescription {
  uint32_t tensor = kUndefined;
  uint8_t flags = 0;
};

struct PacketDescription {
  internal::ValueKind kind = internal::ValueKind::kTensor;
  std::vector<PartDescription> parts;
  std::vector<TensorDescription> tensors;
  std::vector<ItemDescription> items;
  int64_t head_bytes = 0;
};

// `head`: the bytes that have arrived; bytes behind the head are ignored. `limit`: the most memory
// that the packet may take, in bytes. Throws DamagedMessage (bytes.h) for anything that encode()
// does not write for a device of this type.
PacketDescription read_description(std::string_view head, int64_t limit, c10::Device device);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_PACKET_READING_H_
