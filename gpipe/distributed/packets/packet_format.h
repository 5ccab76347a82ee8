// PacketFormat: the bytes of a packet, as far as its writer (packet_codec.cc) and its reader
// (packet_reading.h) must agree.
//
// A head is: kHeadMagic, four bytes of zeros, the size of the description, the description, and the
// memory of the parts that travel in the head, each at its place. A part is a piece of memory that
// one tensor covers, or several that overlap.
#ifndef GPIPE_DISTRIBUTED_PACKETS_PACKET_FORMAT_H_
#define GPIPE_DISTRIBUTED_PACKETS_PACKET_FORMAT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

namespace gpipe::distributed {

constexpr uint32_t kHeadMagic = 0x31504850;      // "PHP1"
constexpr uint32_t kAnnounceMagic = 0x31504150;  // "PAP1"
// The bytes before the description.
constexpr int64_t kHeadBegin = 16;
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

inline bool is_packed(Place place) {
  return place == Place::kPacked || place == Place::kPackedAlone;
}
inline bool is_alone(Place place) { return place == Place::kAlone || place == Place::kPackedAlone; }

enum ItemFlags : uint8_t {
  kNeedsGrad = 1,
  kReadOnly = 2,
  kShared = 4,
  kChanged = 8,
  kConstant = 16
};
enum TensorFlags : uint8_t { kConjugate = 1, kNegative = 2 };

// The number of an item's tensor that is undefined.
constexpr uint32_t kUndefined = UINT32_MAX;

// Whether elements of this type can be sent.
bool can_travel(c10::ScalarType type);

// The size of a line of the device's memory, in bytes.
int64_t line_of(c10::Device device);
// The first position at or behind `offset` in a head that is `shift` bytes behind the begin of a
// line of memory. Tensors on the CPU use the memory of the head, so they must keep their place in a
// line.
int64_t next_place(int64_t offset, int64_t shift);

// A storage of the bytes at `data`, which keeps `owner` alive.
c10::Storage storage_over(const at::Tensor& owner, char* data, int64_t bytes);
at::Tensor tensor_over(c10::Storage storage, c10::ScalarType type, int64_t offset_bytes,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides);
char* data_of(const at::Tensor& bytes);

// Throws DamagedMessage (bytes.h).
[[noreturn]] void damaged(const std::string& what);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_PACKET_FORMAT_H_
