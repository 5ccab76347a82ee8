// BitsHash: hashes of bits, the same on every machine. They find differences; they are not
// signatures.
#ifndef GPIPE_INTERNAL_TENSORS_BITS_HASH_H_
#define GPIPE_INTERNAL_TENSORS_BITS_HASH_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpipe::internal {

// FNV-1a with words of eight bytes instead of bytes, so that gigabytes take a second. A rotation
// brings high bits down, which the multiplication alone would not.
class BitsHash {
 public:
  void add(const void* data, size_t bytes);
  void add(uint64_t word);
  uint64_t value() const { return value_; }
  std::string text() const;  // 16 hexadecimal digits

 private:
  uint64_t value_ = 14695981039346656037U;
};

// The hash of a text, as 16 hexadecimal digits.
std::string hash_of(const std::string& text);

// The hash of the tensor's name, type, shape and values.
uint64_t hash_of(const std::string& name, const at::Tensor& tensor);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_BITS_HASH_H_
