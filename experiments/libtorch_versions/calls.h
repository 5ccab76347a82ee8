// Calls: calls of operators with the values of their arguments, what they gave, and the files of
// both, which any LibTorch reads that another has written.
#ifndef GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_CALLS_H_
#define GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_CALLS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::experiments {

// One call. `type` is that of its first floating-point tensor: "float32", "float64", "bfloat16"...,
// or "other".
struct Call {
  std::string op;  // "aten::add.Tensor"
  std::string type;
  std::string source;                  // what has made it: "unet:1,8"
  std::vector<std::string> names;      // of the arguments, as in the operator's schema
  std::vector<c10::IValue> arguments;  // as own_copies() has them
};

struct Recording {
  std::string version;  // of the LibTorch that recorded it
  std::vector<Call> calls;
};

// What a call gave.
struct Result {
  std::string failure;  // why there is nothing: an operator that is not there
  // Returned, and arguments that it changed. Undefined where the same call gave something else once
  // more: scratch memory that a kernel returns as it was.
  std::vector<at::Tensor> tensors;
};

// All calls of a recording with one number of threads.
struct Replay {
  int64_t threads = 1;
  std::vector<Result> results;  // in the order of `labels`
};

struct Replays {
  std::string version;     // of the LibTorch that replayed them
  std::string capability;  // of the processor, as that LibTorch uses it: "AVX512"
  std::string recording;   // its version and the checksum of its file
  std::vector<std::string> operators, types;  // of the calls
  std::vector<Replay> runs;
};

std::string version_here();  // "2.15.0"
std::string capability_here();

// Whether own_copies() can copy the tensors in it: strided, on the CPU, with values that nothing
// has still to be done to.
bool can_copy(c10::ArrayRef<c10::IValue> values);

// The same values with tensors in memory of their own, of the same strides; tensors that shared
// memory share it in the copy, too. In a form that a file can have: no list but of numbers and of
// tensors (a tuple instead), no undefined tensor and no generator (None), no tensor that stands for
// a plain number (the number).
std::vector<c10::IValue> own_copies(c10::ArrayRef<c10::IValue> values);

// Throw std::runtime_error, with the path, for a file that cannot be read or written, and
// std::invalid_argument for one that is not of this kind. `checksum` becomes that of the file.
void save(const Recording& recording, const std::string& path);
void save(const Replays& replays, const std::string& path);
Recording load_recording(const std::string& path, std::string& checksum);
Replays load_replays(const std::string& path);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_CALLS_H_
