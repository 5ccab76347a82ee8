// ByteWriter, ByteReader: numbers and texts as bytes, for messages between processes.
//
// All processes of a run have the byte order and the types of one build (session.h compares
// builds), so numbers are sent as they are in memory. A reader trusts nothing: it checks every size
// against the bytes that are left before it allocates memory.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_BYTES_H_
#define GPIPE_DISTRIBUTED_SOCKETS_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace gpipe::distributed {

// Thrown if a message is not one that a rank of this run writes.
class DamagedMessage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ByteWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    bytes_.append(bytes, sizeof(T));
  }
  // Writes the size, then the text.
  void text(std::string_view text) {
    number(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
  }

  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what a ByteWriter wrote, in the same order.
//
// Requirements: the bytes outlive it.
//
// Throws: DamagedMessage if fewer bytes are left than a call reads.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text() {
    const auto size = number<uint64_t>();
    if (size > bytes_.size()) {
      throw DamagedMessage("a text of " + std::to_string(size) + " bytes is announced, but only " +
                           std::to_string(bytes_.size()) + " follow");
    }
    return std::string(take(static_cast<size_t>(size)));
  }

  size_t left() const { return bytes_.size(); }
  // Throws if any bytes are left.
  void end() const {
    if (!bytes_.empty()) {
      throw DamagedMessage(std::to_string(bytes_.size()) + " bytes follow the end of a message");
    }
  }

 private:
  std::string_view take(size_t count) {
    if (count > bytes_.size()) {
      throw DamagedMessage(std::to_string(count) + " bytes are expected, but only " +
                           std::to_string(bytes_.size()) + " follow");
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_BYTES_H_
