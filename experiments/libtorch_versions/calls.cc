#include "experiments/libtorch_versions/calls.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Version.h>
#include <c10/core/TensorImpl.h>
#include <torch/serialize.h>
#include <torch/version.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "command/files.h"

namespace gpipe::experiments {
namespace {

using at::Tensor;
using c10::IValue;

constexpr char kRecording[] = "gpipe recording 1";
constexpr char kReplays[] = "gpipe replays 1";

IValue tuple_of(std::vector<IValue> values) {
  return c10::ivalue::Tuple::create(std::move(values));
}

// The value with change(tensor) in the place of each tensor, in the form of own_copies().
IValue with_tensors(const IValue& value, const std::function<IValue(const Tensor&)>& change) {
  if (value.isTensor()) return value.toTensor().defined() ? change(value.toTensor()) : IValue();
  if (value.isGenerator()) return {};
  if (value.isIntList() || value.isDoubleList() || value.isBoolList()) return value;
  if (!value.isList() && !value.isTuple()) return value;
  std::vector<IValue> parts;
  const auto add = [&](const IValue& part) { parts.push_back(with_tensors(part, change)); };
  if (value.isTuple()) {
    for (const IValue& part : value.toTupleRef().elements()) add(part);
  } else {
    for (const IValue& part : value.toListRef()) add(part);
  }
  return tuple_of(std::move(parts));
}

// Whether the tensor stands for a plain number, like the 2 in `x * 2`.
bool is_number(const Tensor& tensor) {
  const c10::ScalarType type = tensor.scalar_type();
  return tensor.unsafeGetTensorImpl()->is_wrapped_number() &&
         (type == at::kDouble || type == at::kLong || type == at::kBool);
}

// Copies tensors. Each storage is copied once, and only the part of it that the tensors use. No
// operator is called, because it would be recorded.
class Copies {
 public:
  void reach(const Tensor& tensor) {
    if (tensor.numel() == 0) return;
    int64_t last = tensor.storage_offset();
    for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto size = static_cast<int64_t>(tensor.element_size());
    Part& part = parts_[tensor.storage().unsafeGetStorageImpl()];
    // The copy begins at the same position in a cache line, because some kernels depend on that.
    const int64_t begin = tensor.storage_offset() * size / kLine * kLine;
    part.begin = part.end == 0 ? begin : std::min(part.begin, begin);
    part.end = std::max(part.end, (last + 1) * size);
  }

  Tensor copy(const Tensor& tensor) {
    if (tensor.numel() == 0) return strided(tensor, at::detail::empty_cpu({0}, at::kByte), 0);
    Part& part = parts_.at(tensor.storage().unsafeGetStorageImpl());
    if (!part.bytes.defined()) {
      part.bytes = at::detail::empty_cpu({part.end - part.begin}, at::kByte);
      std::memcpy(part.bytes.mutable_data_ptr(),
                  static_cast<const char*>(tensor.storage().data()) + part.begin,
                  part.end - part.begin);
    }
    const auto size = static_cast<int64_t>(tensor.element_size());
    return strided(tensor, part.bytes, tensor.storage_offset() - part.begin / size);
  }

 private:
  static constexpr int64_t kLine = 64;

  struct Part {
    int64_t begin = 0, end = 0;  // in bytes
    at::TensorBase bytes;
  };

  static Tensor strided(const Tensor& like, const at::TensorBase& bytes, int64_t offset) {
    c10::Storage storage = bytes.storage();
    Tensor result = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
    result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), offset);
    return result;
  }

  std::map<const c10::StorageImpl*, Part> parts_;
};

IValue number_of(const Tensor& tensor) {
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return *static_cast<const double*>(data);
    case at::kLong:
      return *static_cast<const int64_t*>(data);
    default:
      return *static_cast<const bool*>(data);
  }
}

void write(const IValue& value, const std::string& path) {
  const std::vector<char> bytes = torch::pickle_save(value);
  command::write_file_atomically(path, std::string(bytes.begin(), bytes.end()));
}

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  std::vector<char> bytes(error ? 0 : size);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (error || !file) throw std::runtime_error(absl::StrCat(path, " cannot be read; is it there?"));
  return bytes;
}

// The parts of the file. Throws unless the first part is `kind`.
std::vector<IValue> read(const std::string& path, const std::vector<char>& bytes,
                         const std::string& kind, const char* made_by) {
  const std::string advice =
      absl::StrCat(path, " is not a file that --", made_by, " writes; give one");
  IValue value;
  try {
    value = torch::pickle_load(bytes);
  } catch (const std::exception&) {
    throw std::invalid_argument(absl::StrCat(advice, " (LibTorch cannot load it)"));
  }
  if (!value.isTuple()) throw std::invalid_argument(advice);
  std::vector<IValue> parts = value.toTupleRef().elements().vec();
  if (parts.empty() || !parts[0].isString() || parts[0].toStringRef() != kind) {
    throw std::invalid_argument(advice);
  }
  return parts;
}

std::vector<IValue> parts_of(const IValue& value) { return value.toTupleRef().elements().vec(); }

IValue texts(const std::vector<std::string>& values) {
  return tuple_of(std::vector<IValue>(values.begin(), values.end()));
}
std::vector<std::string> texts(const IValue& value) {
  std::vector<std::string> result;
  for (const IValue& part : parts_of(value)) result.push_back(part.toStringRef());
  return result;
}

}  // namespace

std::string version_here() { return TORCH_VERSION; }
std::string capability_here() { return at::get_cpu_capability(); }

bool can_copy(c10::ArrayRef<IValue> values) {
  bool can = true;
  for (const IValue& value : values) {
    with_tensors(value, [&](const Tensor& tensor) {
      can = can && tensor.layout() == c10::kStrided && tensor.is_cpu() && !tensor.is_conj() &&
            !tensor.is_neg() && !tensor._is_zerotensor() && !tensor.is_quantized() &&
            !tensor.is_nested();
      return IValue();
    });
  }
  return can;
}

std::vector<IValue> own_copies(c10::ArrayRef<IValue> values) {
  Copies copies;
  for (const IValue& value : values) {
    with_tensors(value, [&](const Tensor& tensor) {
      copies.reach(tensor);
      return IValue();
    });
  }
  std::vector<IValue> result;
  for (const IValue& value : values) {
    result.push_back(with_tensors(value, [&](const Tensor& tensor) {
      return is_number(tensor) ? number_of(tensor) : IValue(copies.copy(tensor));
    }));
  }
  return result;
}

void save(const Recording& recording, const std::string& path) {
  std::vector<IValue> calls;
  for (const Call& call : recording.calls) {
    calls.push_back(
        tuple_of({call.op, call.type, call.source, texts(call.names), tuple_of(call.arguments)}));
  }
  write(tuple_of({kRecording, recording.version, tuple_of(std::move(calls))}), path);
}

void save(const Replays& replays, const std::string& path) {
  std::vector<IValue> runs;
  for (const Replay& run : replays.runs) {
    std::vector<IValue> results;
    for (const Result& result : run.results) {
      std::vector<IValue> tensors;
      for (const Tensor& tensor : result.tensors) {
        tensors.push_back(tensor.defined() ? IValue(tensor) : IValue());
      }
      results.push_back(tuple_of({result.failure, tuple_of(std::move(tensors))}));
    }
    runs.push_back(tuple_of({run.threads, tuple_of(std::move(results))}));
  }
  write(tuple_of({kReplays, replays.version, replays.capability, replays.recording,
                  texts(replays.operators), texts(replays.types), tuple_of(std::move(runs))}),
        path);
}

Recording load_recording(const std::string& path, std::string& checksum) {
  const std::vector<char> bytes = bytes_of(path);
  checksum = absl::StrCat(
      absl::Hex(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size())));
  const std::vector<IValue> parts = read(path, bytes, kRecording, "record");
  Recording recording;
  recording.version = parts[1].toStringRef();
  for (const IValue& value : parts_of(parts[2])) {
    const std::vector<IValue> call = parts_of(value);
    recording.calls.push_back({call[0].toStringRef(), call[1].toStringRef(), call[2].toStringRef(),
                               texts(call[3]), parts_of(call[4])});
  }
  return recording;
}

Replays load_replays(const std::string& path) {
  const std::vector<IValue> parts = read(path, bytes_of(path), kReplays, "results");
  Replays replays{parts[1].toStringRef(), parts[2].toStringRef(), parts[3].toStringRef(),
                  texts(parts[4]),        texts(parts[5]),        {}};
  for (const IValue& value : parts_of(parts[6])) {
    const std::vector<IValue> run = parts_of(value);
    Replay replay{run[0].toInt(), {}};
    for (const IValue& entry : parts_of(run[1])) {
      const std::vector<IValue> result = parts_of(entry);
      std::vector<Tensor> tensors;
      for (const IValue& tensor : parts_of(result[1])) {
        tensors.push_back(tensor.isNone() ? Tensor() : tensor.toTensor());
      }
      replay.results.push_back({result[0].toStringRef(), std::move(tensors)});
    }
    replays.runs.push_back(std::move(replay));
  }
  return replays;
}

}  // namespace gpipe::experiments
