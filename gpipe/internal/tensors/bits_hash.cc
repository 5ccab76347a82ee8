#include "gpipe/internal/tensors/bits_hash.h"

#include <c10/util/StringUtil.h>

#include <cstdio>
#include <cstring>

namespace gpipe::internal {

void BitsHash::add(const void* data, size_t bytes) {
  const auto* position = static_cast<const unsigned char*>(data);
  for (; bytes >= sizeof(uint64_t); position += sizeof(uint64_t), bytes -= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, position, sizeof word);
    add(word);
  }
  uint64_t rest = 0;
  if (bytes > 0) std::memcpy(&rest, position, bytes);  // a tensor without elements has no memory
  add(rest);
  add(bytes);
}

void BitsHash::add(uint64_t word) {
  value_ = (value_ ^ word) * 1099511628211U;
  value_ = value_ << 29 | value_ >> 35;
}

std::string BitsHash::text() const {
  char text[32];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value_));
  return text;
}

std::string hash_of(const std::string& text) {
  BitsHash hash;
  hash.add(text.data(), text.size());
  return hash.text();
}

uint64_t hash_of(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  const std::string form = name + c10::str(values.dtype(), values.sizes());
  BitsHash hash;
  hash.add(form.data(), form.size());
  hash.add(values.const_data_ptr(), values.nbytes());
  return hash.value();
}

}  // namespace gpipe::internal
