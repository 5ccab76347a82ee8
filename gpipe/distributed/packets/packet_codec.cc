#include "gpipe/distributed/packets/packet_codec.h"

#include <ATen/Functions.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/packets/packet_format.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/byte_tensor.h"
#include "gpipe/internal/tensors/twins.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {
namespace {

using internal::ByteReader;
using internal::ByteWriter;
using internal::Item;
using internal::new_bytes;
using internal::Packet;

void check_can_travel(const at::Tensor& tensor, c10::Device device) {
  const char* what = nullptr;
  if (tensor.device() != device) {
    what = device.is_cpu() ? "is not on the CPU" : "is not on the device of its process";
  }
  if (tensor.layout() != c10::kStrided) what = "is not strided";
  if (tensor.layout() == c10::kStrided && !tensor.has_storage()) what = "has no memory of its own";
  if (!can_travel(tensor.scalar_type())) what = "has elements of a type that cannot be sent";
  if (internal::has_names(tensor)) what = "has named dimensions";
  if (tensor._is_zerotensor()) what = "stands for zeros without memory";
  if (tensor.dim() > kMostDimensions) what = "has more than 64 dimensions";
  TORCH_CHECK_TYPE(what == nullptr, "a tensor of type ", tensor.toString(), " and shape ",
                   tensor.sizes(), " cannot go to another process: it ", what);
}

uint64_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// A part of a storage: the memory of one tensor, or of several that overlap. Begin and end are in
// bytes.
struct Part {
  const c10::StorageImpl* storage = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<std::size_t> tensors;
  Place place = Place::kInline;
  at::Tensor packed;

  int64_t bytes() const { return end - begin; }
  int64_t travelling() const {
    return is_packed(place) ? static_cast<int64_t>(packed.nbytes()) : bytes();
  }
  const char* data() const { return static_cast<const char*>(storage->data()) + begin; }
  int64_t shift() const {
    const auto line = static_cast<uint64_t>(line_of(storage->device()));
    return bytes() == 0 ? 0 : static_cast<int64_t>(address_of(data()) % line);
  }
};

int64_t unique_bytes(const at::Tensor& tensor) {
  auto bytes = static_cast<int64_t>(tensor.element_size());
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    bytes *= tensor.stride(i) == 0 ? std::min<int64_t>(tensor.size(i), 1) : tensor.size(i);
  }
  return bytes;
}

// The tensor with each element once: dimensions that repeat elements get size 1.
at::Tensor without_repetitions(const at::Tensor& repeated) {
  at::Tensor tensor = internal::detached_alias(repeated);
  // The bits are sent as they are in memory, and the marks for conjugate and negative beside them.
  tensor._set_conj(false);
  tensor._set_neg(false);
  c10::SmallVector<int64_t, 6> sizes(tensor.sizes().begin(), tensor.sizes().end());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (tensor.strides()[i] == 0) sizes[i] = 1;
  }
  return tensor.as_strided(sizes, tensor.strides(), tensor.storage_offset());
}

std::vector<Part> parts_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    const internal::MemoryRange range = internal::memory_range(tensor);
    const auto size = static_cast<int64_t>(tensor.element_size());
    Part part;
    part.storage = internal::storage_of(tensor);
    part.begin = range.begin * size / kLargestElement * kLargestElement;
    part.end = range.end * size;
    if (tensor.numel() == 0) part.begin = part.end = 0;
    part.tensors = {i};
    parts.push_back(std::move(part));
  }
  // The parts are sorted by storage, in the order of first use, and within a storage by their
  // begin.
  const auto first_use = [&](const Part& part) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
      return internal::storage_of(tensor) == part.storage;
    });
  };
  std::stable_sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) {
    return std::make_pair(first_use(a), a.begin) < std::make_pair(first_use(b), b.begin);
  });
  std::vector<Part> joined;
  for (Part& part : parts) {
    if (!joined.empty() && joined.back().storage == part.storage && part.bytes() > 0 &&
        part.begin < joined.back().end) {
      joined.back().end = std::max(joined.back().end, part.end);
      joined.back().tensors.push_back(part.tensors.front());
    } else {
      joined.push_back(std::move(part));
    }
  }
  return joined;
}

void write_tensor(ByteWriter& head, const at::Tensor& tensor, uint32_t part, int64_t begin) {
  const auto flags =
      static_cast<uint8_t>((tensor.is_conj() ? kConjugate : 0) | (tensor.is_neg() ? kNegative : 0));
  const int64_t offset =
      tensor.numel() == 0
          ? 0
          : tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()) - begin;
  head.put(part, tensor.scalar_type(), flags, offset, static_cast<uint16_t>(tensor.dim()));
  for (int64_t i = 0; i < tensor.dim(); ++i) head.put(tensor.size(i), tensor.stride(i));
}

// The bytes of a part of an accelerator's memory.
at::Tensor bytes_within(const at::Tensor& tensor, int64_t begin, int64_t count) {
  return tensor_over(tensor.storage(), c10::kByte, begin, {count}, {1});
}

// A packet's tensors, each tensor object once, and the number of the tensor that each item has.
struct Objects {
  std::vector<at::Tensor> tensors;
  std::vector<uint32_t> of_item;  // the number in `tensors`; kUndefined: no tensor
};

Objects objects_of(const Packet& packet, c10::Device device) {
  Objects objects;
  internal::Twins<uint32_t> known;  // the numbers of the tensors so far
  for (const Item& item : packet.items) {
    if (!item.tensor.defined()) {
      objects.of_item.push_back(kUndefined);
      continue;
    }
    if (const uint32_t* const twin = known.find(item.tensor)) {
      objects.of_item.push_back(*twin);
      continue;
    }
    check_can_travel(item.tensor, device);
    objects.of_item.push_back(static_cast<uint32_t>(objects.tensors.size()));
    known.add(item.tensor, objects.of_item.back());
    objects.tensors.push_back(item.tensor);
  }
  return objects;
}

// Chooses how a part travels. `first`: the part's first tensor.
void choose_place(Part& part, const at::Tensor& first, int64_t alone_from, c10::Device device) {
  if (part.tensors.size() == 1 && part.bytes() > 2 * unique_bytes(first) + kLargestElement) {
    part.place = Place::kPacked;
    part.packed = without_repetitions(first).contiguous();
  }
  if (part.place == Place::kInline && part.bytes() >= alone_from) part.place = Place::kAlone;
  if (device.is_cpu()) return;
  if (part.place == Place::kPacked) part.place = Place::kPackedAlone;
  if (part.place == Place::kInline && part.bytes() > 0) part.place = Place::kAlone;
}

void write_part(ByteWriter& head, const Part& part, const std::vector<Part>& parts) {
  head.put(part.place, part.bytes(), static_cast<uint8_t>(part.shift()), part.travelling());
  // The number of the first part of the same storage. The receiver needs it, because an in-place
  // change of a tensor counts for all tensors that share its storage.
  head.put(static_cast<uint32_t>(
      std::find_if(parts.begin(), parts.end(),
                   [&](const Part& other) { return other.storage == part.storage; }) -
      parts.begin()));
}

void write_item(ByteWriter& head, const Item& item, uint32_t tensor) {
  head.put(tensor);
  head.put(static_cast<uint8_t>((item.needs_grad ? kNeedsGrad : 0) |
                                (item.read_only ? kReadOnly : 0) | (item.shared ? kShared : 0) |
                                (item.is_changed() ? kChanged : 0) |
                                (item.constant ? kConstant : 0)));
}

// The description of the packet, which its head contains (PacketDescription).
ByteWriter described(const Packet& packet, const Objects& objects, const std::vector<Part>& parts) {
  std::vector<uint32_t> part_of(objects.tensors.size());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (const std::size_t tensor : parts[p].tensors) part_of[tensor] = static_cast<uint32_t>(p);
  }
  ByteWriter head;
  head.put(packet.kind, static_cast<uint32_t>(parts.size()));
  for (const Part& part : parts) write_part(head, part, parts);
  head.put(static_cast<uint32_t>(objects.tensors.size()));
  for (std::size_t i = 0; i < objects.tensors.size(); ++i) {
    write_tensor(head, objects.tensors[i], part_of[i], parts[part_of[i]].begin);
  }
  head.put(static_cast<uint32_t>(packet.items.size()));
  for (std::size_t i = 0; i < packet.items.size(); ++i) {
    write_item(head, packet.items[i], objects.of_item[i]);
  }
  return head;
}

// The whole head: the description, and the parts that travel in it.
at::Tensor head_of(const ByteWriter& description, const std::vector<Part>& parts) {
  const auto bytes = static_cast<int64_t>(description.bytes().size());
  int64_t end = kHeadBegin + bytes;
  std::vector<int64_t> begins;
  for (const Part& part : parts) {
    if (is_alone(part.place)) {
      begins.push_back(0);
      continue;
    }
    begins.push_back(next_place(end, part.place == Place::kPacked ? 0 : part.shift()));
    end = begins.back() + part.travelling();
  }
  at::Tensor head = new_bytes(end);
  char* data = data_of(head);
  int64_t written = kHeadBegin + bytes;
  std::memset(data, 0, static_cast<size_t>(kHeadBegin));
  std::memcpy(data, &kHeadMagic, sizeof kHeadMagic);
  std::memcpy(data + 8, &bytes, sizeof bytes);
  std::memcpy(data + kHeadBegin, description.bytes().data(), description.bytes().size());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    if (is_alone(part.place)) continue;
    // The gap before the part is filled with zeros, because it must not carry old contents of this
    // process's memory.
    std::memset(data + written, 0, static_cast<size_t>(begins[p] - written));
    const void* from = part.place == Place::kPacked ? part.packed.const_data_ptr() : part.data();
    if (part.travelling() > 0) {
      std::memcpy(data + begins[p], from, static_cast<size_t>(part.travelling()));
    }
    written = begins[p] + part.travelling();
  }
  return head;
}

// Adds a part that does not travel in the head as a message of its own.
void add_body(OutgoingPacket& result, const Part& part, const std::vector<at::Tensor>& tensors,
              c10::Device device) {
  const at::Tensor& first = tensors[part.tensors.front()];
  if (part.place == Place::kPackedAlone) {
    const auto begin =
        part.packed.storage_offset() * static_cast<int64_t>(part.packed.element_size());
    result.bodies.push_back(bytes_within(part.packed, begin, part.travelling()));
    return;
  }
  if (!device.is_cpu()) {
    result.bodies.push_back(bytes_within(first, part.begin, part.bytes()));
    return;
  }
  auto storage = storage_over(first, const_cast<char*>(part.data()), part.bytes());
  result.bodies.push_back(tensor_over(std::move(storage), c10::kByte, 0, {part.bytes()}, {1}));
  for (const std::size_t tensor : part.tensors) result.sources.emplace_back(tensors[tensor]);
}

}  // namespace

bool OutgoingPacket::is_changed() const {
  return std::any_of(sources.begin(), sources.end(),
                     [](const internal::VersionMark& source) { return source.is_changed(); });
}

OutgoingPacket encode(const Packet& packet, int64_t alone_from, c10::Device device) {
  const Objects objects = objects_of(packet, device);
  std::vector<Part> parts = parts_of(objects.tensors);
  for (Part& part : parts) {
    choose_place(part, objects.tensors[part.tensors.front()], alone_from, device);
  }
  OutgoingPacket result;
  result.head = head_of(described(packet, objects, parts), parts);
  for (const Part& part : parts) {
    if (is_alone(part.place)) add_body(result, part, objects.tensors, device);
  }
  return result;
}

at::Tensor announce(int64_t head_bytes) {
  at::Tensor message = new_bytes(kAnnouncementBytes);
  char* data = data_of(message);
  std::memset(data, 0, kAnnouncementBytes);
  std::memcpy(data, &kAnnounceMagic, sizeof kAnnounceMagic);
  std::memcpy(data + 8, &head_bytes, sizeof head_bytes);
  return message;
}

std::optional<int64_t> announced_bytes(const at::Tensor& message, int64_t limit) {
  ByteReader reader(
      {static_cast<const char*>(message.const_data_ptr()), static_cast<size_t>(message.numel())});
  const auto magic = reader.get<uint32_t>();
  if (magic == kHeadMagic) return std::nullopt;
  if (magic != kAnnounceMagic) damaged("it does not begin as one");
  reader.get<uint32_t>();
  const auto bytes = reader.get<int64_t>();
  if (bytes < kAnnouncementBytes || bytes > limit) {
    damaged("it announces " + std::to_string(bytes) + " bytes");
  }
  return bytes;
}

}  // namespace gpipe::distributed
