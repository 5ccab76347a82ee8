#include "gpipe/distributed/packets/packet_codec.h"

#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/distributed/sockets/bytes.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/twins.h"

namespace gpipe::distributed {
namespace {

using internal::Item;
using internal::Packet;
using internal::ValueKind;

constexpr uint32_t kHeadMagic = 0x31504850;      // "PHP1"
constexpr uint32_t kAnnounceMagic = 0x31504150;  // "PAP1"
// The size of the largest element, in bytes. Each piece of memory begins at a multiple of it, so
// that all elements in it are aligned for their type.
constexpr int64_t kLargestElement = 16;
constexpr uint16_t kMostDimensions = 64;

enum class Place : uint8_t {
  kInline,  // in the head
  kAlone,   // a message of its own
  kPacked,  // in the head, without the gaps between its elements
  kPackedAlone,
};

bool is_packed(Place place) { return place == Place::kPacked || place == Place::kPackedAlone; }
bool is_alone(Place place) { return place == Place::kAlone || place == Place::kPackedAlone; }

enum ItemFlags : uint8_t {
  kNeedsGrad = 1,
  kReadOnly = 2,
  kShared = 4,
  kChanged = 8,
  kConstant = 16
};
enum TensorFlags : uint8_t { kConjugate = 1, kNegative = 2 };

bool can_travel(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::UInt64:
    case c10::ScalarType::Half:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::ComplexHalf:
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
    case c10::ScalarType::Bool:
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e4m3fn:
    case c10::ScalarType::Float8_e5m2fnuz:
    case c10::ScalarType::Float8_e4m3fnuz:
      return true;
    default:
      return false;
  }
}

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

int64_t line_of(c10::Device device) { return static_cast<int64_t>(internal::line_bytes(device)); }

// The first place at or behind `offset` in a head whose place in a line is `shift`. Tensors on the
// CPU use the memory of the head.
int64_t next_place(int64_t offset, int64_t shift) {
  const int64_t line = line_of(c10::kCPU);
  return offset + ((shift - offset) % line + line) % line;
}

// --- Sending.

// A part of a storage that one tensor covers, or several that overlap. Places are in bytes.
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
  // The bits as they are in memory: the marks are sent beside them.
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
  // Sort by storage, in the order of first use; within a storage by place.
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
  head.number(part);
  head.number(static_cast<int8_t>(tensor.scalar_type()));
  head.number(static_cast<uint8_t>((tensor.is_conj() ? kConjugate : 0) |
                                   (tensor.is_neg() ? kNegative : 0)));
  const int64_t offset =
      tensor.numel() == 0
          ? 0
          : tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()) - begin;
  head.number(offset);
  head.number(static_cast<uint16_t>(tensor.dim()));
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    head.number(tensor.size(i));
    head.number(tensor.stride(i));
  }
}

// --- Receiving.

[[noreturn]] void damaged(const std::string& what) {
  throw DamagedMessage("a packet of tensors is damaged: " + what);
}

// The description of one tensor, as read and checked by itself.
struct Description {
  uint32_t part = 0;
  c10::ScalarType type = c10::ScalarType::Undefined;
  uint8_t flags = 0;
  int64_t offset = 0;  // of its first element in its part, in bytes
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
  int64_t extent = 0;        // from its first element to the end of its last, in bytes
  int64_t unique_bytes = 0;  // without repetitions

  int64_t element() const { return static_cast<int64_t>(c10::elementSize(type)); }
};

Description read_description(ByteReader& reader) {
  Description result;
  result.part = reader.number<uint32_t>();
  const auto type = reader.number<int8_t>();
  result.type = static_cast<c10::ScalarType>(type);
  if (type < 0 || !can_travel(result.type)) damaged("no type " + std::to_string(type));
  result.flags = reader.number<uint8_t>();
  if (result.flags > (kConjugate | kNegative)) damaged("no such marks of a tensor");
  if ((result.flags & kConjugate) != 0 && !c10::isComplexType(result.type)) {
    damaged("only complex numbers have a conjugate");
  }
  result.offset = reader.number<int64_t>();
  const auto dimensions = reader.number<uint16_t>();
  if (dimensions > kMostDimensions) damaged(std::to_string(dimensions) + " dimensions");
  int64_t elements = 1;
  int64_t unique = 1;
  int64_t last = 0;
  bool overflow = false;
  for (uint16_t i = 0; i < dimensions; ++i) {
    const auto size = reader.number<int64_t>();
    const auto stride = reader.number<int64_t>();
    if (size < 0 || stride < 0) damaged("a size or stride below 0");
    result.sizes.push_back(size);
    result.strides.push_back(stride);
    // A later size of 0 does not clear the overflow, although the number of elements is then 0.
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

// A storage of the bytes at `data`, which keeps `owner` alive.
c10::Storage storage_over(const at::Tensor& owner, char* data, int64_t bytes) {
  auto* context = new at::Tensor(owner);
  c10::DataPtr pointer(
      data, context, [](void* kept) { delete static_cast<at::Tensor*>(kept); },
      c10::Device(c10::kCPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                      std::move(pointer), c10::GetCPUAllocator(), /*resizable=*/true);
}

at::Tensor tensor_over(c10::Storage storage, c10::ScalarType type, int64_t offset_bytes,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const c10::DispatchKey key = c10::computeDispatchKey(type, c10::kStrided, storage.device());
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      sizes, strides, offset_bytes / static_cast<int64_t>(c10::elementSize(type)));
  return tensor;
}

at::Tensor bytes_of(int64_t count, c10::Device device = c10::kCPU) {
  return at::empty({count}, c10::TensorOptions(c10::kByte).device(device));
}

// The bytes of a part of an accelerator's memory.
at::Tensor bytes_within(const at::Tensor& tensor, int64_t begin, int64_t count) {
  return tensor_over(tensor.storage(), c10::kByte, begin, {count}, {1});
}

// Not inlined: gcc assumes that LibTorch's branch for tensors without memory is taken here.
__attribute__((noinline)) char* data_of(const at::Tensor& bytes) {
  return static_cast<char*>(bytes.mutable_data_ptr());
}

// A piece of memory, into which several tensors may be views.
struct ReadPart {
  Place place = Place::kInline;
  int64_t bytes = 0;
  int64_t shift = 0;
  int64_t begin = 0;  // in the head
  int64_t travelling = 0;
  uint32_t storage_number = 0;
  int64_t users = 0;
  at::Tensor owner;
  at::Tensor packed;  // for kPackedAlone
  c10::Storage storage;
  int64_t in_storage = 0;  // where the part begins in the storage
};

}  // namespace

bool OutgoingPacket::is_changed() const {
  return std::any_of(sources.begin(), sources.end(),
                     [](const internal::VersionMark& source) { return source.is_changed(); });
}

OutgoingPacket encode(const Packet& packet, int64_t alone_from, c10::Device device) {
  std::vector<at::Tensor> tensors;  // each object once
  internal::Twins<uint32_t> known;  // their numbers
  std::vector<uint32_t> tensor_of_item;
  constexpr uint32_t kUndefined = UINT32_MAX;
  for (const Item& item : packet.items) {
    if (!item.tensor.defined()) {
      tensor_of_item.push_back(kUndefined);
      continue;
    }
    if (const uint32_t* const twin = known.find(item.tensor)) {
      tensor_of_item.push_back(*twin);
      continue;
    }
    check_can_travel(item.tensor, device);
    tensor_of_item.push_back(static_cast<uint32_t>(tensors.size()));
    known.add(item.tensor, tensor_of_item.back());
    tensors.push_back(item.tensor);
  }
  std::vector<Part> parts = parts_of(tensors);
  std::vector<uint32_t> part_of_tensor(tensors.size());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    Part& part = parts[p];
    for (const std::size_t tensor : part.tensors) part_of_tensor[tensor] = static_cast<uint32_t>(p);
    const at::Tensor& first = tensors[part.tensors.front()];
    if (part.tensors.size() == 1 && part.bytes() > 2 * unique_bytes(first) + kLargestElement) {
      part.place = Place::kPacked;
      part.packed = without_repetitions(first).contiguous();
    }
    if (part.place == Place::kInline && part.bytes() >= alone_from) part.place = Place::kAlone;
    if (device.is_cpu()) continue;
    if (part.place == Place::kPacked) part.place = Place::kPackedAlone;
    if (part.place == Place::kInline && part.bytes() > 0) part.place = Place::kAlone;
  }

  ByteWriter head;
  head.number(static_cast<uint8_t>(packet.kind));
  head.number(static_cast<uint32_t>(parts.size()));
  for (const Part& part : parts) {
    head.number(static_cast<uint8_t>(part.place));
    head.number(part.bytes());
    head.number(static_cast<uint8_t>(part.shift()));
    head.number(part.travelling());
    // The number of the first part of the same storage, for the receiver: in-place changes of
    // tensors that share a storage count for all of them.
    head.number(static_cast<uint32_t>(
        std::find_if(parts.begin(), parts.end(),
                     [&](const Part& other) { return other.storage == part.storage; }) -
        parts.begin()));
  }
  head.number(static_cast<uint32_t>(tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    write_tensor(head, tensors[i], part_of_tensor[i], parts[part_of_tensor[i]].begin);
  }
  head.number(static_cast<uint32_t>(packet.items.size()));
  for (std::size_t i = 0; i < packet.items.size(); ++i) {
    const Item& item = packet.items[i];
    head.number(tensor_of_item[i]);
    head.number(
        static_cast<uint8_t>((item.needs_grad ? kNeedsGrad : 0) | (item.read_only ? kReadOnly : 0) |
                             (item.shared ? kShared : 0) | (item.is_changed() ? kChanged : 0) |
                             (item.constant ? kConstant : 0)));
  }

  // A head is: magic, the size of the description, the description, the parts.
  const auto described = static_cast<int64_t>(head.bytes().size());
  int64_t end = 16 + described;
  std::vector<int64_t> begins;
  for (const Part& part : parts) {
    if (is_alone(part.place)) {
      begins.push_back(0);
      continue;
    }
    begins.push_back(next_place(end, part.place == Place::kPacked ? 0 : part.shift()));
    end = begins.back() + part.travelling();
  }
  OutgoingPacket result;
  result.head = bytes_of(end);
  char* data = data_of(result.head);
  std::memset(data, 0, static_cast<size_t>(16 + described));
  std::memcpy(data, &kHeadMagic, sizeof kHeadMagic);
  std::memcpy(data + 8, &described, sizeof described);
  std::memcpy(data + 16, head.bytes().data(), head.bytes().size());
  int64_t written = 16 + described;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    const at::Tensor& first = tensors[part.tensors.front()];
    if (is_alone(part.place)) {
      if (part.place == Place::kPackedAlone) {
        const auto begin =
            part.packed.storage_offset() * static_cast<int64_t>(part.packed.element_size());
        result.bodies.push_back(bytes_within(part.packed, begin, part.travelling()));
      } else if (!device.is_cpu()) {
        result.bodies.push_back(bytes_within(first, part.begin, part.bytes()));
      } else {
        auto storage = storage_over(first, const_cast<char*>(part.data()), part.bytes());
        result.bodies.push_back(
            tensor_over(std::move(storage), c10::kByte, 0, {part.bytes()}, {1}));
        for (const std::size_t tensor : part.tensors) result.sources.emplace_back(tensors[tensor]);
      }
      continue;
    }
    // The gaps must not carry old contents of this process's memory.
    std::memset(data + written, 0, static_cast<size_t>(begins[p] - written));
    const void* from = part.place == Place::kPacked ? part.packed.const_data_ptr() : part.data();
    if (part.travelling() > 0) {
      std::memcpy(data + begins[p], from, static_cast<size_t>(part.travelling()));
    }
    written = begins[p] + part.travelling();
  }
  return result;
}

IncomingPacket::IncomingPacket(const at::Tensor& head, int64_t limit, c10::Device device) {
  const std::string_view all(static_cast<const char*>(head.const_data_ptr()),
                             static_cast<size_t>(head.numel()));
  ByteReader start(all);
  if (start.number<uint32_t>() != kHeadMagic) damaged("it does not begin as one");
  start.number<uint32_t>();
  const auto described = start.number<int64_t>();
  if (described < 0 || described > static_cast<int64_t>(start.left())) {
    damaged("its description ends behind it");
  }
  ByteReader reader(all.substr(16, static_cast<size_t>(described)));
  // Each counted item takes bytes of the description, so no count causes more memory to be
  // allocated than a small multiple of what has arrived.
  const auto count = [&](size_t least_bytes) {
    const auto number = reader.number<uint32_t>();
    if (number > reader.left() / least_bytes) damaged("it counts more than it describes");
    return number;
  };

  const auto kind = reader.number<uint8_t>();
  if (kind > static_cast<uint8_t>(ValueKind::kTuple4)) damaged("no kind " + std::to_string(kind));
  packet_.kind = static_cast<ValueKind>(kind);

  std::vector<ReadPart> parts(count(22));
  int64_t end = 16 + described;
  int64_t total = 0;
  for (ReadPart& part : parts) {
    const auto place = reader.number<uint8_t>();
    if (place > static_cast<uint8_t>(Place::kPackedAlone)) {
      damaged("no place " + std::to_string(place));
    }
    part.place = static_cast<Place>(place);
    part.bytes = reader.number<int64_t>();
    part.shift = reader.number<uint8_t>();
    part.travelling = reader.number<int64_t>();
    part.storage_number = reader.number<uint32_t>();
    if (part.storage_number >= parts.size()) damaged("no such storage");
    if (part.bytes < 0 || part.travelling < 0 || part.shift >= line_of(device)) {
      damaged("a size below 0");
    }
    if (!is_packed(part.place) && part.travelling != part.bytes) damaged("two sizes");
    if (device.is_cpu() ? part.place == Place::kPackedAlone
                        : !is_alone(part.place) && part.bytes + part.travelling > 0) {
      damaged("memory of another type of devices");
    }
    if (part.place != Place::kInline && (__builtin_add_overflow(total, part.bytes, &total) ||
                                         (part.place == Place::kPackedAlone &&
                                          __builtin_add_overflow(total, part.travelling, &total)) ||
                                         total > limit)) {
      damaged("it wants more than " + std::to_string(limit) + " bytes of memory");
    }
    if (is_alone(part.place)) continue;
    part.begin = next_place(end, part.place == Place::kPacked ? 0 : part.shift);
    if (__builtin_add_overflow(part.begin, part.travelling, &end) ||
        end > static_cast<int64_t>(all.size())) {
      damaged("bytes of a tensor end behind it");
    }
  }

  head_bytes_ = end;

  std::vector<Description> descriptions(count(16));
  for (Description& described_tensor : descriptions) {
    described_tensor = read_description(reader);
    if (described_tensor.part >= parts.size()) damaged("a tensor in no memory");
    ReadPart& part = parts[described_tensor.part];
    ++part.users;
    int64_t tensor_end = 0;
    if (__builtin_add_overflow(described_tensor.offset, described_tensor.extent, &tensor_end) ||
        tensor_end > part.bytes) {
      damaged("a tensor ends behind its memory");
    }
    // On an accelerator the tensor's storage is the memory itself, and its offset is in elements.
    const int64_t least = device.is_cpu() ? std::min<int64_t>(described_tensor.element(), 8)
                                          : described_tensor.element();
    if (described_tensor.extent > 0 && (part.shift + described_tensor.offset) % least != 0) {
      damaged("an element across two places");
    }
    if (is_packed(part.place) &&
        (part.users > 1 || part.travelling != described_tensor.unique_bytes)) {
      damaged("a tensor with gaps of another size");
    }
  }

  struct ReadItem {
    uint32_t tensor;
    uint8_t flags;
  };
  std::vector<ReadItem> items(count(5));
  for (ReadItem& item : items) {
    item.tensor = reader.number<uint32_t>();
    item.flags = reader.number<uint8_t>();
    if (item.tensor != UINT32_MAX && item.tensor >= descriptions.size()) damaged("no such tensor");
    if (item.flags > (kNeedsGrad | kReadOnly | kShared | kChanged | kConstant))
      damaged("no such marks");
  }
  reader.end();

  // Everything is checked, so memory may be allocated from here on.
  for (ReadPart& part : parts) {
    if (part.place == Place::kInline && device.is_cpu()) {
      part.owner = head;
      part.storage = storage_over(head, data_of(head) + part.begin, part.bytes);
    } else {
      part.owner = bytes_of(part.bytes + part.shift, device);
      if (device.is_cpu()) {
        part.storage = storage_over(part.owner, data_of(part.owner) + part.shift, part.bytes);
      } else {
        // The allocator's own storage, because the allocator tracks that for streams that use it.
        part.storage = part.owner.storage();
        part.in_storage = part.shift;
      }
    }
    if (part.place == Place::kAlone) {
      bodies_.push_back(part.owner.narrow(0, part.shift, part.bytes));
    } else if (part.place == Place::kPackedAlone) {
      part.packed = bytes_of(part.travelling, device);
      bodies_.push_back(part.packed);
    }
  }
  std::vector<at::Tensor> tensors;
  tensors.reserve(descriptions.size());
  std::vector<const c10::TensorImpl*> first_of_storage(parts.size());
  for (const Description& described_tensor : descriptions) {
    const ReadPart& part = parts[described_tensor.part];
    const int64_t offset = part.in_storage + described_tensor.offset;
    at::Tensor tensor = tensor_over(part.storage, described_tensor.type, offset,
                                    described_tensor.sizes, described_tensor.strides);
    if (is_packed(part.place)) {
      // The elements are contiguous in the bytes that were sent.
      c10::SmallVector<int64_t, 6> sizes = described_tensor.sizes;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (described_tensor.strides[i] == 0) sizes[i] = 1;
      }
      const at::Tensor to =
          tensor_over(part.storage, described_tensor.type, offset, sizes, described_tensor.strides);
      c10::SmallVector<int64_t, 6> dense(sizes.size());
      int64_t stride = 1;
      for (std::size_t i = sizes.size(); i-- > 0;) {
        dense[i] = stride;
        stride *= sizes[i];
      }
      const at::Tensor from =
          tensor_over(part.place == Place::kPacked
                          ? storage_over(head, data_of(head) + part.begin, part.travelling)
                          : part.packed.storage(),
                      described_tensor.type, 0, sizes, dense);
      filled_later_.emplace_back(to, from);
    }
    if ((described_tensor.flags & kConjugate) != 0) tensor._set_conj(true);
    if ((described_tensor.flags & kNegative) != 0) tensor._set_neg(true);
    const c10::TensorImpl*& first = first_of_storage[part.storage_number];
    if (first == nullptr) {
      first = tensor.unsafeGetTensorImpl();
    } else if (!tensor.is_inference()) {
      tensor.unsafeGetTensorImpl()->set_version_counter(first->version_counter());
    }
    tensors.push_back(std::move(tensor));
  }
  for (const ReadItem& read : items) {
    Item item;
    if (read.tensor != UINT32_MAX) item.tensor = tensors[read.tensor];
    item.needs_grad = (read.flags & kNeedsGrad) != 0;
    item.read_only = (read.flags & kReadOnly) != 0;
    item.shared = (read.flags & kShared) != 0;
    item.constant = (read.flags & kConstant) != 0;
    item.version = (read.flags & kChanged) != 0 ? -1 : 0;
    packet_.items.push_back(std::move(item));
  }
}

Packet IncomingPacket::take() {
  for (auto& [to, from] : filled_later_) to.copy_(from);
  filled_later_.clear();
  bodies_.clear();
  // Receiving into the tensors does not count as a change.
  for (Item& item : packet_.items) {
    if (item.version == 0) item.mark_version();
  }
  return std::move(packet_);
}

at::Tensor announce(int64_t head_bytes) {
  at::Tensor message = bytes_of(kAnnouncementBytes);
  char* data = data_of(message);
  std::memset(data, 0, kAnnouncementBytes);
  std::memcpy(data, &kAnnounceMagic, sizeof kAnnounceMagic);
  std::memcpy(data + 8, &head_bytes, sizeof head_bytes);
  return message;
}

std::optional<int64_t> announced_bytes(const at::Tensor& message, int64_t limit) {
  ByteReader reader(
      {static_cast<const char*>(message.const_data_ptr()), static_cast<size_t>(message.numel())});
  const auto magic = reader.number<uint32_t>();
  if (magic == kHeadMagic) return std::nullopt;
  if (magic != kAnnounceMagic) damaged("it does not begin as one");
  reader.number<uint32_t>();
  const auto bytes = reader.number<int64_t>();
  if (bytes < kAnnouncementBytes || bytes > limit) {
    damaged("it announces " + std::to_string(bytes) + " bytes");
  }
  return bytes;
}

}  // namespace gpipe::distributed
