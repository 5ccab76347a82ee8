// safetensors: files with named tensors and nothing else: no code, no pickled objects.
//
// The format is Hugging Face's. Python's `safetensors` reads files that are written here, and the
// reverse.
#ifndef SAFETENSORS_SAFETENSORS_H_
#define SAFETENSORS_SAFETENSORS_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/header.h"

namespace gpipe::safetensors {

// The contents of a file, in memory. A value type, whose copies share `data`.
struct Image {
  std::string header;      // the text of the header
  int64_t data_bytes = 0;  // the bytes of all tensors
  // The bytes of the tensors: [data_bytes], uint8, on the CPU. Undefined if they are elsewhere.
  at::Tensor data;
};

// A file that is open for reading, or an image of one.
//
// Guarantees: the whole header is checked before the first tensor is read (parse_header), so a
// damaged file is refused when it is opened, and no more memory is asked for than the file is
// large. A tensor that is read has memory of its own.
//
// Thread-safety: read() may be called from several threads.
//
// Throws std::runtime_error with the path and the reason for a file that cannot be read, or is
// damaged; c10::ValueError for a name that it does not have.
//
// Example:
//   gpipe::safetensors::File file("model.safetensors");
//   for (const auto& [name, entry] : file.header().tensors) {
//     at::Tensor tensor = file.read(name);
//   }
class File {
 public:
  explicit File(std::string path);
  // `name`: for messages. Throws std::runtime_error with the name if the image's header is damaged.
  File(std::string name, Image image);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const Header& header() const { return header_; }
  const std::string& path() const { return path_; }

  // Reads a tensor to the CPU, in the file's type. Throws std::runtime_error if this is an image
  // whose data are elsewhere.
  at::Tensor read(const std::string& name) const;

 private:
  std::string path_;
  int descriptor_ = -1;  // -1 for an image
  at::Tensor image_;
  int64_t data_ = 0;  // the offset at which the tensors begin
  Header header_;
};

// Writes the tensors, on whatever device they are, and moves the file to its place when it is whole
// and on the disk. So a reader sees the old or the new file, never half of one, even after a crash
// in the middle. The bytes are those that Python's `safetensors` would write. Tensors that are on
// another device, or not contiguous, are copied one at a time.
//
// If a file is replaced, the new one gets its access rights, and its owner if the system allows
// that.
//
// Throws c10::ValueError for a name twice, the name "__metadata__", names and metadata that are not
// UTF-8, a tensor that is undefined, not dense or of a type that the format does not have;
// std::runtime_error with the path and the reason where the file cannot be written. The old file is
// unchanged then, and nothing is left behind.
void write(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
           const std::map<std::string, std::string>& metadata = {});

// The image of the file that write() would write, in memory of its own. Throws c10::ValueError as
// write() does.
Image image_of(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
               const std::map<std::string, std::string>& metadata = {});

// type_name() is "F32" for at::kFloat; the other function is its inverse. Both throw
// c10::ValueError if there is no counterpart.
std::string type_name(at::ScalarType type);
at::ScalarType type_of(const std::string& name);

}  // namespace gpipe::safetensors

#endif  // SAFETENSORS_SAFETENSORS_H_
