// Header: what a safetensors file says about its tensors. Reads and checks it.
//
// A file is eight bytes with the length of the header, little-endian; the header, JSON; and the
// tensors' bytes, one tensor behind the other. This unit knows the header only, and no LibTorch.
#ifndef SAFETENSORS_HEADER_H_
#define SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::safetensors {

// The longest header. Longer ones are refused before memory is asked for, as by other readers.
constexpr int64_t kMaxHeaderBytes = 100'000'000;

// The types of elements, as headers name them ("F32"), in the order in which tensors of several
// types follow each other in a file: larger ones first, so that each begins at a multiple of its
// size.
struct ElementType {
  std::string_view name;
  int64_t bytes;
};
const std::vector<ElementType>& element_types();

// A value type. `begin` and `end` count from the first byte behind the header.
struct Entry {
  std::string type;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
};

// A value type.
struct Header {
  std::map<std::string, Entry> tensors;         // by name
  std::map<std::string, std::string> metadata;  // free text
};

// Guarantees: the tensors cover the `data_bytes` behind the header without holes and overlaps. Each
// tensor has the bytes that its type and shape ask for, and the numbers of its shape fit LibTorch's
// int64. Memory stays within a small multiple of the text, whatever the text says.
//
// Throws std::runtime_error with the reason for anything else, also for names that occur twice,
// fields that the format does not have, and text that is not UTF-8.
Header parse_header(std::string_view text, int64_t data_bytes);

// The text of a header, padded with spaces to a multiple of eight bytes. Throws
// std::invalid_argument for names and texts that are not UTF-8.
std::string to_text(const Header& header);

// The number of bytes of a tensor. Throws std::runtime_error for an unknown type, a negative size,
// and a number that int64_t does not hold.
int64_t bytes_of(const std::string& type, const std::vector<int64_t>& shape);

}  // namespace gpipe::safetensors

#endif  // SAFETENSORS_HEADER_H_
