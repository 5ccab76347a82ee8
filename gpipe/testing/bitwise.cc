#include "gpipe/testing/bitwise.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstring>
#include <iomanip>
#include <limits>
#include <sstream>

#include "gpipe/testing/ulp.h"

namespace gpipe::testing {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream out;
  at::PrintTo(tensor, &out);
  return out.str();
}

// Returns a copy of the tensor on the host, in the order of the indices, without lazy conjugation
// or negation.
at::Tensor plain_copy(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

std::string index_text(const at::Tensor& tensor, int64_t element) {
  std::vector<int64_t> index(tensor.dim());
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    index[d] = element % tensor.size(d);
    element /= tensor.size(d);
  }
  std::ostringstream out;
  out << c10::IntArrayRef(index);
  return out.str();
}

// The bits of a number of `size` bytes.
uint64_t bits_of(const char* data, size_t size) {
  uint64_t bits = 0;
  std::memcpy(&bits, data, size);  // x86-64 is little-endian
  return bits;
}

template <typename T>
std::string floating(const char* data) {
  T x;
  std::memcpy(&x, data, sizeof(T));
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<T>::max_digits10);
  if constexpr (sizeof(T) <= 4) {
    text << static_cast<float>(x);
  } else {
    text << x;
  }
  return text.str();
}

template <typename T>
std::string integer(const char* data) {
  T x;
  std::memcpy(&x, data, sizeof(T));
  return std::to_string(x);
}

// The text of one real number, or of one part of a complex number.
std::string number(c10::ScalarType type, const char* data) {
  switch (type) {
    case c10::kFloat:
      return floating<float>(data);
    case c10::kDouble:
      return floating<double>(data);
    case c10::kHalf:
      return floating<c10::Half>(data);
    case c10::kBFloat16:
      return floating<c10::BFloat16>(data);
    case c10::kBool:
      return *data != 0 ? "true" : "false";
    case c10::kByte:
      return integer<uint8_t>(data);
    case c10::kChar:
      return integer<int8_t>(data);
    case c10::kShort:
      return integer<int16_t>(data);
    case c10::kInt:
      return integer<int32_t>(data);
    case c10::kLong:
      return integer<int64_t>(data);
    default:
      return "?";  // the message shows the bits in any case
  }
}

struct Parts {
  c10::ScalarType type;
  size_t size;   // the size of one number in bytes
  size_t count;  // how many numbers an element has (2 if it is complex)
};

Parts parts_of(c10::ScalarType type) {
  const size_t size = c10::elementSize(type);
  if (!c10::isComplexType(type)) return {type, size, 1};
  return {c10::toRealValueType(type), size / 2, 2};
}

std::string element_text(const Parts& parts, const char* data) {
  std::ostringstream text;
  for (size_t p = 0; p < parts.count; ++p) {
    text << (p > 0 ? " + i " : "") << number(parts.type, data + p * parts.size);
  }
  text << " (0x" << std::hex << std::setfill('0');
  for (size_t p = 0; p < parts.count; ++p) {
    if (parts.size > sizeof(uint64_t)) break;
    text << (p > 0 ? ", 0x" : "") << std::setw(static_cast<int>(2 * parts.size))
         << bits_of(data + p * parts.size, parts.size);
  }
  text << ")";
  return text.str();
}

std::string value_difference(const at::Tensor& expected, const at::Tensor& actual) {
  const at::Tensor want = plain_copy(expected);
  const at::Tensor have = plain_copy(actual);
  const size_t size = want.element_size();
  const char* a = static_cast<const char*>(want.const_data_ptr());
  const char* b = static_cast<const char*>(have.const_data_ptr());
  if (want.numel() == 0 || std::memcmp(a, b, want.numel() * size) == 0) return "";

  const c10::ScalarType type = want.scalar_type();
  const Parts parts = parts_of(type);
  int64_t first = -1;
  int64_t count = 0;
  int64_t farthest = -1;
  uint64_t largest = 0;
  for (int64_t k = 0; k < want.numel(); ++k) {
    if (std::memcmp(a + k * size, b + k * size, size) == 0) continue;
    if (first < 0) first = k;
    ++count;
    const auto ulp = ulp_distance(type, a + k * size, b + k * size);
    if (ulp.has_value() && (farthest < 0 || *ulp > largest)) {
      farthest = k;
      largest = *ulp;
    }
  }
  const char* x = a + first * size;
  const char* y = b + first * size;
  std::ostringstream text;
  text << "differs first at " << index_text(want, first) << ": expected " << element_text(parts, x)
       << ", is " << element_text(parts, y);
  if (const auto ulp = ulp_distance(type, x, y); ulp.has_value()) text << ", " << *ulp << " ulp";
  text << "; " << count << " of " << want.numel() << " elements differ";
  if (count > 1 && farthest >= 0) {
    text << ", most by " << largest << " ulp at " << index_text(want, farthest);
  }
  return text.str();
}

}  // namespace

std::string bitwise_difference(const at::Tensor& expected, const at::Tensor& actual) {
  if (!expected.defined() && !actual.defined()) return "";
  if (expected.defined() != actual.defined() || expected.scalar_type() != actual.scalar_type() ||
      expected.layout() != actual.layout() || expected.sizes() != actual.sizes() ||
      expected.device() != actual.device()) {
    return "expected " + shape_text(expected) + ", is " + shape_text(actual);
  }
  if (expected.layout() != c10::kStrided || expected.is_quantized() || expected.is_meta()) {
    return "only dense tensors with values can be compared, not " + shape_text(expected);
  }
  return value_difference(expected, actual);
}

std::string bitwise_difference(const std::vector<at::Tensor>& expected,
                               const std::vector<at::Tensor>& actual) {
  if (expected.size() != actual.size()) {
    return "expected " + std::to_string(expected.size()) + " tensors, are " +
           std::to_string(actual.size());
  }
  std::string result;
  for (size_t k = 0; k < expected.size(); ++k) {
    const std::string difference = bitwise_difference(expected[k], actual[k]);
    if (difference.empty()) continue;
    result += (result.empty() ? "tensor " : "; tensor ") + std::to_string(k) + ": " + difference;
  }
  return result;
}

}  // namespace gpipe::testing

namespace at {

void PrintTo(const Tensor& tensor, std::ostream* out) {
  if (!tensor.defined()) {
    *out << "undefined";
    return;
  }
  *out << tensor.scalar_type() << tensor.sizes() << " on " << tensor.device();
  if (tensor.layout() != c10::kStrided) *out << " (" << tensor.layout() << ")";
}

}  // namespace at
