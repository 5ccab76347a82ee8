#include "safetensors/safetensors.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "text/shown.h"

namespace gpipe::safetensors {
namespace {

constexpr int64_t kLengthBytes = 8;

// A type of the format and the type of LibTorch that is the same.
struct Pair {
  const char* name;
  at::ScalarType type;
};
constexpr Pair kTypes[] = {
    {"U64", at::kUInt64},
    {"I64", at::kLong},
    {"F64", at::kDouble},
    {"C64", at::kComplexFloat},
    {"F32", at::kFloat},
    {"U32", at::kUInt32},
    {"I32", at::kInt},
    {"BF16", at::kBFloat16},
    {"F16", at::kHalf},
    {"U16", at::kUInt16},
    {"I16", at::kShort},
    {"F8_E5M2FNUZ", at::kFloat8_e5m2fnuz},
    {"F8_E4M3FNUZ", at::kFloat8_e4m3fnuz},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
};

// Whether the eight bytes of a header's length are printable characters, as in a file that is a
// text.
bool is_text(const unsigned char* length) {
  return std::all_of(length, length + kLengthBytes, [](unsigned char c) {
    return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
  });
}

std::string system_error() { return std::strerror(errno); }

// Reads exactly `bytes` from `offset`.
void read_fully(int descriptor, void* data, int64_t bytes, int64_t offset) {
  auto* position = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor, position, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::runtime_error(system_error());
    if (got == 0) throw std::runtime_error("it has become shorter");
    position += got;
    bytes -= got;
    offset += got;
  }
}

void write_fully(int descriptor, const void* data, int64_t bytes) {
  const auto* position = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor, position, static_cast<size_t>(bytes));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw std::runtime_error(system_error());
    position += put;
    bytes -= put;
  }
}

// Reads the header of an open file, and sets `data` to the offset of the byte behind it.
Header read_header(int descriptor, int64_t* data) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) throw std::runtime_error(system_error());
  if (!S_ISREG(status.st_mode)) throw std::runtime_error("it is not a file");
  const int64_t size = status.st_size;
  if (size < kLengthBytes) {
    throw std::runtime_error("it has " + std::to_string(size) +
                             " bytes, the length of a header alone takes 8");
  }
  unsigned char length[kLengthBytes];
  read_fully(descriptor, length, kLengthBytes, 0);
  uint64_t bytes = 0;
  for (int64_t i = kLengthBytes; i-- > 0;) bytes = bytes << 8 | length[i];
  if (bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    throw std::runtime_error(
        "its header would be " + std::to_string(bytes) + " bytes, more than the " +
        std::to_string(kMaxHeaderBytes) + " that are allowed" +
        (is_text(length) ? "; it begins like text, not like safetensors" : ""));
  }
  const auto header_bytes = static_cast<int64_t>(bytes);
  if (header_bytes > size - kLengthBytes) {
    throw std::runtime_error("its header would be " + std::to_string(bytes) +
                             " bytes, it has only " + std::to_string(size - kLengthBytes) +
                             " behind the length");
  }
  std::string text(bytes, '\0');
  read_fully(descriptor, text.data(), header_bytes, kLengthBytes);
  *data = kLengthBytes + header_bytes;
  return parse_header(text, size - *data);
}

// Throws if a byte of a bool tensor is neither 0 nor 1, because C++ has no behavior defined for
// such a bool.
void check_truth_values(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (bytes[i] > 1) {
      throw std::runtime_error("element " + std::to_string(i) + " is " + std::to_string(bytes[i]) +
                               ", not a truth value");
    }
  }
}

// Plans the header of a file: the places where the tensors will lie. They are in the order of
// Python's library: by types, then by names.
Header plan(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
            const std::map<std::string, std::string>& metadata,
            std::vector<const at::Tensor*>* in_order) {
  Header header;
  header.metadata = metadata;
  std::map<std::string, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(name != "__metadata__", "a tensor cannot be called '__metadata__'");
    TORCH_CHECK_VALUE(tensor.defined(), "tensor ", text::quoted(name), " is undefined");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && !tensor.is_quantized(), "tensor ",
                      text::quoted(name), " must be dense, got ", tensor.layout(),
                      tensor.is_quantized() ? ", quantized" : "");
    TORCH_CHECK_VALUE(!tensor.is_meta(), "tensor ", text::quoted(name),
                      " is on meta and has no values");
    TORCH_CHECK_VALUE(by_name.emplace(name, &tensor).second, "tensor ", text::quoted(name),
                      " is given twice");
    try {
      header.tensors[name] = {type_name(tensor.scalar_type()), tensor.sizes().vec(), 0, 0};
    } catch (c10::Error& error) {
      error.add_context("tensor " + text::quoted(name));
      throw;
    }
  }
  int64_t bytes = 0;
  for (const ElementType& type : element_types()) {
    for (auto& [name, entry] : header.tensors) {
      if (entry.type != type.name) continue;
      entry.begin = bytes;
      bytes += bytes_of(entry.type, entry.shape);
      entry.end = bytes;
      in_order->push_back(by_name.at(name));
    }
  }
  return header;
}

// The text of a planned header. `what`: "the header of model.safetensors", for the message.
std::string checked_text(const Header& header, const std::string& what) {
  std::string text;
  try {
    text = to_text(header);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
  TORCH_CHECK_VALUE(static_cast<int64_t>(text.size()) <= kMaxHeaderBytes, what, " would be ",
                    text.size(), " bytes, at most ", kMaxHeaderBytes,
                    " are allowed; write several files");
  return text;
}

at::Tensor values_on_cpu(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

// A file beside its final place, to which it is moved when it is complete.
class Draft {
 public:
  explicit Draft(const std::filesystem::path& place) : place_(place) {
    // Refuses a device or a pipe, which must not be replaced.
    std::error_code error;
    if (std::filesystem::is_other(place, error)) throw std::runtime_error("it is not a file");
    // The draft's name has the process's number and a count, because other programs may write the
    // same file at the same time, even on another machine.
    static std::atomic<int64_t> count{0};
    do {
      draft_ = place_.string() + ".part" + std::to_string(getpid()) + "." + std::to_string(count++);
      descriptor_ = open(draft_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) {
      draft_.clear();
      throw std::runtime_error(system_error());
    }
    keep_access();
  }
  ~Draft() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!draft_.empty()) unlink(draft_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  int descriptor() const { return descriptor_; }

  void move_to_its_place() {
    if (fsync(descriptor_) != 0) throw std::runtime_error(system_error());
    const int descriptor = std::exchange(descriptor_, -1);
    if (close(descriptor) != 0) throw std::runtime_error(system_error());
    if (std::rename(draft_.c_str(), place_.c_str()) != 0) throw std::runtime_error(system_error());
    draft_.clear();
    // Brings the file's name to the disk, too. If the file system cannot do that, the file is whole
    // all the same.
    const std::string folder = place_.has_parent_path() ? place_.parent_path().string() : ".";
    const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened >= 0) {
      fsync(opened);
      close(opened);
    }
  }

 private:
  // Gives the new file the old one's rights, so that users who could read or write it still can.
  void keep_access() const {
    struct stat old {};
    if (stat(place_.c_str(), &old) != 0) return;
    // The owner is set before the rights, because changing the owner takes rights away. Only root
    // may give files away; other users may give them to groups of their own. If the group cannot be
    // kept, its rights are dropped, too.
    mode_t rights = old.st_mode & 0777;
    if (fchown(descriptor_, old.st_uid, old.st_gid) != 0 &&
        fchown(descriptor_, static_cast<uid_t>(-1), old.st_gid) != 0) {
      rights &= 0707;
    }
    if (fchmod(descriptor_, rights) != 0) errno = 0;
  }

  std::filesystem::path place_;
  std::string draft_;
  int descriptor_;
};

// The place that `path` leads to. Symbolic links are followed, so that they stay, even a link to a
// file that does not exist yet.
std::filesystem::path place_of(const std::string& path) {
  std::filesystem::path place = path;
  std::error_code error;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(place, error); ++links) {
    place = place.parent_path() / std::filesystem::read_symlink(place, error);
  }
  return place;
}

}  // namespace

File::File(std::string path)
    : path_(std::move(path)),
      // Without O_NONBLOCK, open() would wait for a pipe that has no writer.
      descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  try {
    if (descriptor_ < 0) throw std::runtime_error(system_error());
    header_ = read_header(descriptor_, &data_);
  } catch (const std::runtime_error& error) {
    if (descriptor_ >= 0) close(descriptor_);
    throw std::runtime_error("cannot read " + path_ + ": " + error.what());
  } catch (...) {  // an error of another type, such as out of memory
    close(descriptor_);
    throw;
  }
}

File::File(std::string name, Image image) : path_(std::move(name)), image_(std::move(image.data)) {
  try {
    header_ = parse_header(image.header, image.data_bytes);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot read " + path_ + ": " + error.what());
  }
  TORCH_CHECK_VALUE(!image_.defined() || image_.numel() == image.data_bytes, path_, " has ",
                    image_.defined() ? image_.numel() : 0, " bytes of tensors, not ",
                    image.data_bytes);
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

at::Tensor File::read(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  TORCH_CHECK_VALUE(found != header_.tensors.end(), path_, " has no tensor ", text::quoted(name));
  const Entry& entry = found->second;
  at::Tensor tensor =
      at::empty(entry.shape, at::TensorOptions(type_of(entry.type)).device(at::kCPU));
  const int64_t bytes = entry.end - entry.begin;
  try {
    if (descriptor_ >= 0) {
      read_fully(descriptor_, tensor.mutable_data_ptr(), bytes, data_ + entry.begin);
    } else if (!image_.defined()) {
      throw std::runtime_error("its data are in another process");
    } else if (bytes > 0) {
      std::memcpy(tensor.mutable_data_ptr(), image_.const_data_ptr<uint8_t>() + entry.begin,
                  static_cast<size_t>(bytes));
    }
    if (tensor.scalar_type() == at::kBool) check_truth_values(tensor);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot read tensor " + text::quoted(name) + " of " + path_ + ": " +
                             error.what());
  }
  return tensor;
}

void write(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
           const std::map<std::string, std::string>& metadata) {
  std::vector<const at::Tensor*> in_order;
  const Header header = plan(tensors, metadata, &in_order);
  const std::string text = checked_text(header, "the header of " + path);
  try {
    Draft draft(place_of(path));
    unsigned char length[kLengthBytes];
    for (int64_t i = 0; i < kLengthBytes; ++i) {
      length[i] = static_cast<unsigned char>(uint64_t{text.size()} >> (8 * i));
    }
    write_fully(draft.descriptor(), length, kLengthBytes);
    write_fully(draft.descriptor(), text.data(), static_cast<int64_t>(text.size()));
    for (const at::Tensor* tensor : in_order) {
      const at::Tensor values = values_on_cpu(*tensor);
      write_fully(draft.descriptor(), values.const_data_ptr(),
                  static_cast<int64_t>(values.nbytes()));
    }
    draft.move_to_its_place();
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot write " + path + ": " + error.what());
  }
}

Image image_of(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
               const std::map<std::string, std::string>& metadata) {
  std::vector<const at::Tensor*> in_order;
  const Header header = plan(tensors, metadata, &in_order);
  Image image;
  image.header = checked_text(header, "the header of an image");
  for (const auto& [name, entry] : header.tensors) {
    image.data_bytes = std::max(image.data_bytes, entry.end);
  }
  image.data = at::empty({image.data_bytes}, at::TensorOptions(at::kByte).device(at::kCPU));
  auto* position = image.data.mutable_data_ptr<uint8_t>();
  for (const at::Tensor* tensor : in_order) {
    const at::Tensor values = values_on_cpu(*tensor);
    if (values.nbytes() == 0) continue;
    std::memcpy(position, values.const_data_ptr(), values.nbytes());
    position += values.nbytes();
  }
  return image;
}

std::string type_name(at::ScalarType type) {
  for (const Pair& pair : kTypes) {
    if (pair.type == type) return pair.name;
  }
  TORCH_CHECK_VALUE(false, "safetensors has no type for ", type);
}

at::ScalarType type_of(const std::string& name) {
  for (const Pair& pair : kTypes) {
    if (pair.name == name) return pair.type;
  }
  TORCH_CHECK_VALUE(false, text::quoted(name), " is not a type of safetensors that LibTorch has");
}

}  // namespace gpipe::safetensors
