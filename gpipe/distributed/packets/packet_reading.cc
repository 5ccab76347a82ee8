#include "gpipe/distributed/packets/packet_reading.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {
namespace {

using internal::ByteReader;
using internal::ValueKind;

// Reads a count of items, each of which takes at least `least_bytes` of the description. A greater
// count is refused, so no count causes more memory to be allocated than a small multiple of what
// has arrived.
uint32_t read_count(ByteReader& reader, size_t least_bytes) {
  const auto number = reader.get<uint32_t>();
  if (number > reader.left() / least_bytes)
    damaged("a count of " + std::to_string(number) + " in its description, of which only " +
            std::to_string(reader.left()) + " bytes are left");
  return number;
}

ValueKind read_kind(ByteReader& reader) {
  const auto kind = reader.get<ValueKind>();
  if (kind > ValueKind::kTuple4) damaged("no kind " + std::to_string(static_cast<int>(kind)));
  return kind;
}

PartDescription read_part(ByteReader& reader, size_t parts, c10::Device device) {
  PartDescription part;
  part.place = reader.get<Place>();
  if (part.place > Place::kPackedAlone) {
    damaged("no place " + std::to_string(static_cast<int>(part.place)));
  }
  part.bytes = reader.get<int64_t>();
  part.shift = reader.get<uint8_t>();
  part.travelling = reader.get<int64_t>();
  part.storage_number = reader.get<uint32_t>();
  if (part.storage_number >= parts) damaged("the number of a storage that it does not have");
  if (part.bytes < 0 || part.travelling < 0) damaged("a size below 0");
  if (part.shift >= line_of(device)) damaged("a first byte behind its line of memory");
  if (!is_packed(part.place) && part.travelling != part.bytes)
    damaged("two different sizes of memory that is not packed");
  if (device.is_cpu() ? part.place == Place::kPackedAlone
                      : !is_alone(part.place) && part.bytes + part.travelling > 0) {
    damaged("memory of another type of devices");
  }
  return part;
}

// Reads the parts. `end`: the end of the description in the head; becomes the end of the last part
// that travels in the head.
std::vector<PartDescription> read_parts(ByteReader& reader, int64_t& end, int64_t head_bytes,
                                        int64_t limit, c10::Device device) {
  std::vector<PartDescription> parts(read_count(reader, 22));
  int64_t total = 0;
  for (PartDescription& part : parts) {
    part = read_part(reader, parts.size(), device);
    if (part.place != Place::kInline && (__builtin_add_overflow(total, part.bytes, &total) ||
                                         (part.place == Place::kPackedAlone &&
                                          __builtin_add_overflow(total, part.travelling, &total)) ||
                                         total > limit)) {
      damaged("it wants more than " + std::to_string(limit) + " bytes of memory");
    }
    if (is_alone(part.place)) continue;
    part.begin = next_place(end, part.place == Place::kPacked ? 0 : part.shift);
    if (__builtin_add_overflow(part.begin, part.travelling, &end) || end > head_bytes) {
      damaged("bytes of a tensor end behind it");
    }
  }
  return parts;
}

TensorDescription read_tensor(ByteReader& reader) {
  TensorDescription result;
  result.part = reader.get<uint32_t>();
  const auto type = reader.get<int8_t>();
  result.type = static_cast<c10::ScalarType>(type);
  if (type < 0 || !can_travel(result.type)) damaged("no type " + std::to_string(type));
  result.flags = reader.get<uint8_t>();
  if (result.flags > (kConjugate | kNegative)) damaged("no such marks of a tensor");
  if ((result.flags & kConjugate) != 0 && !c10::isComplexType(result.type)) {
    damaged("only complex numbers have a conjugate");
  }
  result.offset = reader.get<int64_t>();
  const auto dimensions = reader.get<uint16_t>();
  if (dimensions > kMostDimensions) damaged(std::to_string(dimensions) + " dimensions");
  int64_t elements = 1;
  int64_t unique = 1;
  int64_t last = 0;
  bool overflow = false;
  for (uint16_t i = 0; i < dimensions; ++i) {
    const auto size = reader.get<int64_t>();
    const auto stride = reader.get<int64_t>();
    if (size < 0 || stride < 0) damaged("a size or stride below 0");
    result.sizes.push_back(size);
    result.strides.push_back(stride);
    // An overflow is remembered even if a later size is 0, and so the number of elements is 0.
    overflow = __builtin_mul_overflow(elements, size, &elements) || overflow;
    overflow =
        __builtin_mul_overflow(unique, stride == 0 ? std::min<int64_t>(size, 1) : size, &unique) ||
        overflow;
    int64_t reach = 0;
    overflow = __builtin_mul_overflow(std::max<int64_t>(size - 1, 0), stride, &reach) || overflow;
    overflow = __builtin_add_overflow(last, reach, &last) || overflow;
  }
  const int64_t element = result.element();
  int64_t total = 0;
  overflow = __builtin_mul_overflow(elements, element, &total) || overflow;
  overflow = __builtin_mul_overflow(unique, element, &result.unique_bytes) || overflow;
  overflow = __builtin_add_overflow(last, 1, &last) || overflow;
  overflow = __builtin_mul_overflow(last, element, &result.extent) || overflow;
  if (overflow) damaged("a tensor is larger than any memory");
  if (elements == 0) result.extent = result.unique_bytes = 0;
  if (result.offset < 0 || result.offset % element != 0) damaged("an offset within an element");
  return result;
}

// Throws DamagedMessage unless the tensor is within its part, and its elements are aligned for
// their type. `users`: how many tensors of that part were read so far, with this one.
void check_place(const TensorDescription& tensor, const PartDescription& part, int64_t users,
                 c10::Device device) {
  int64_t end = 0;
  if (__builtin_add_overflow(tensor.offset, tensor.extent, &end) || end > part.bytes) {
    damaged("a tensor ends behind its memory");
  }
  // On an accelerator the tensor's storage begins with the memory itself, and the tensor's offset
  // counts elements. So the tensor must begin at a multiple of its element's size.
  const int64_t least = device.is_cpu() ? std::min<int64_t>(tensor.element(), 8) : tensor.element();
  if (tensor.extent > 0 && (part.shift + tensor.offset) % least != 0) {
    damaged("an element across two places");
  }
  if (is_packed(part.place) && (users > 1 || part.travelling != tensor.unique_bytes)) {
    damaged("a tensor with gaps of another size");
  }
}

std::vector<TensorDescription> read_tensors(ByteReader& reader,
                                            const std::vector<PartDescription>& parts,
                                            c10::Device device) {
  std::vector<TensorDescription> tensors(read_count(reader, 16));
  std::vector<int64_t> users(parts.size());
  for (TensorDescription& tensor : tensors) {
    tensor = read_tensor(reader);
    if (tensor.part >= parts.size()) damaged("a tensor in no memory");
    check_place(tensor, parts[tensor.part], ++users[tensor.part], device);
  }
  return tensors;
}

std::vector<ItemDescription> read_items(ByteReader& reader, size_t tensors) {
  std::vector<ItemDescription> items(read_count(reader, 5));
  for (ItemDescription& item : items) {
    item.tensor = reader.get<uint32_t>();
    item.flags = reader.get<uint8_t>();
    if (item.tensor != kUndefined && item.tensor >= tensors) damaged("no such tensor");
    if (item.flags > (kNeedsGrad | kReadOnly | kShared | kChanged | kConstant)) {
      damaged("no such marks");
    }
  }
  return items;
}

}  // namespace

PacketDescription read_description(std::string_view head, int64_t limit, c10::Device device) {
  ByteReader start(head);
  if (start.get<uint32_t>() != kHeadMagic) damaged("it does not begin as one");
  start.get<uint32_t>();
  const auto described = start.get<int64_t>();
  if (described < 0 || described > static_cast<int64_t>(start.left())) {
    damaged("its description ends behind it");
  }
  ByteReader reader(head.substr(kHeadBegin, static_cast<size_t>(described)));
  PacketDescription result;
  result.kind = read_kind(reader);
  result.head_bytes = kHeadBegin + described;
  result.parts =
      read_parts(reader, result.head_bytes, static_cast<int64_t>(head.size()), limit, device);
  result.tensors = read_tensors(reader, result.parts, device);
  result.items = read_items(reader, result.tensors.size());
  reader.end();
  return result;
}

}  // namespace gpipe::distributed
