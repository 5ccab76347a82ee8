// ByteWriter, ByteReader: values as bytes, for messages between processes.
//
// A value is a number, a bool, an enumerator, a duration, a text, a vector of values, a pair, or a
// struct. A function fields() in the struct's namespace names its members in their order:
//
//   auto fields(Endpoint& endpoint) { return std::tie(endpoint.address, endpoint.port); }
//   const std::string bytes = to_bytes(endpoint);
//   const auto copy = from_bytes<Endpoint>(bytes, "an address");
//
// All processes of a run have the byte order and the types of one build (session.h compares
// builds), so numbers are sent as they are in memory. A reader trusts nothing: it checks every size
// against the bytes that are left before it allocates memory.
#ifndef GPIPE_RUNTIME_BYTES_H_
#define GPIPE_RUNTIME_BYTES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe::internal {

// Thrown if a message is not one that a process of this run writes.
class DamagedMessage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ByteWriter {
 public:
  template <typename... Values>
  ByteWriter& put(const Values&... values) {
    (put_one(values), ...);
    return *this;
  }

  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  template <typename T>
  void put_one(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else if constexpr (std::is_enum_v<T>) {
      put_one(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      const std::string_view text = value;
      put_one(uint64_t{text.size()});
      bytes_.append(text);
    } else {
      // fields() only names the members.
      std::apply([&](const auto&... each) { put(each...); }, fields(const_cast<T&>(value)));
    }
  }
  template <typename T>
  void put_one(const std::vector<T>& values) {
    put_one(uint64_t{values.size()});
    for (const T& value : values) put_one(value);
  }
  template <typename A, typename B>
  void put_one(const std::pair<A, B>& value) {
    put(value.first, value.second);
  }
  template <typename Rep, typename Period>
  void put_one(const std::chrono::duration<Rep, Period>& value) {
    put_one(value.count());
  }

  std::string bytes_;
};

// Reads what a ByteWriter wrote, in the same order.
//
// Requirements: the bytes outlive it.
class ByteReader {
 public:
  // `what`: begins the text of each DamagedMessage, for example "the terms of a call".
  explicit ByteReader(std::string_view bytes, std::string what = "a message")
      : bytes_(bytes), what_(std::move(what)) {}

  // Throws DamagedMessage if fewer bytes are left than the value takes, or for a bool that is
  // neither true nor false. Any number is taken for an enumerator.
  template <typename T>
  T get() {
    T value{};
    read(value);
    return value;
  }

  size_t left() const { return bytes_.size(); }
  // Throws DamagedMessage if any bytes are left.
  void end() const {
    if (!bytes_.empty()) damaged(std::to_string(bytes_.size()) + " bytes follow its end");
  }

 private:
  template <typename T>
  void read(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = get<uint8_t>();
      if (byte > 1) damaged(std::to_string(byte) + " is neither yes nor no");
      value = byte == 1;
    } else if constexpr (std::is_arithmetic_v<T>) {
      std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    } else if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(get<std::underlying_type_t<T>>());
    } else {
      std::apply([&](auto&... each) { (read(each), ...); }, fields(value));
    }
  }
  void read(std::string& value) { value = take(size()); }
  template <typename T>
  void read(std::vector<T>& values) {
    for (size_t left = size(); left > 0; --left) values.push_back(get<T>());
  }
  template <typename A, typename B>
  void read(std::pair<A, B>& value) {
    read(value.first);
    read(value.second);
  }
  template <typename Rep, typename Period>
  void read(std::chrono::duration<Rep, Period>& value) {
    value = std::chrono::duration<Rep, Period>(get<Rep>());
  }
  // The size of a text, or of a vector, each value of which takes a byte at least.
  size_t size() {
    const auto size = get<uint64_t>();
    if (size > left()) {
      damaged("a size of " + std::to_string(size) + " is announced, but only " +
              std::to_string(left()) + " bytes follow");
    }
    return static_cast<size_t>(size);
  }
  std::string_view take(size_t count) {
    if (count > left()) {
      damaged(std::to_string(count) + " bytes are expected, but only " + std::to_string(left()) +
              " follow");
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  [[noreturn]] void damaged(const std::string& why) const {
    throw DamagedMessage(what_ + ": " + why);
  }

  std::string_view bytes_;
  std::string what_;
};

// The values one after another.
template <typename... Values>
std::string to_bytes(const Values&... values) {
  return ByteWriter().put(values...).take();
}

// The inverse of to_bytes(value). `what`: as ByteReader has it. Throws DamagedMessage.
template <typename T>
T from_bytes(std::string_view bytes, std::string what = "a message") {
  ByteReader reader(bytes, std::move(what));
  T value = reader.get<T>();
  reader.end();
  return value;
}

// Named values as one text, to compare all of them at once: of two texts that differ, the message
// of Control::agree() and Processes::agree() names the first value that does.
constexpr char kFieldEnd = '\0';  // begins the text, ends each name and value, and is in none
inline std::string fields_text(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string text(1, kFieldEnd);
  for (const auto& [name, value] : fields) text += name + kFieldEnd + value + kFieldEnd;
  return text;
}

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_BYTES_H_
