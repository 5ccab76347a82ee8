// Calls: recorded calls of operators with their arguments, the results of replaying them, and files
// of both that every version of LibTorch can read.
#ifndef GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_CALLS_H_
#define GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_CALLS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::experiments {

// A call of an operator. `type` is the type of its first floating-point tensor: "float32",
// "float64", "bfloat16"..., or "other".
struct Call {
  std::string op;  // "aten::add.Tensor"
  std::string type;
  std::string source;                  // the step that made it: "unet:1,8"
  std::vector<std::string> names;      // the arguments' names, as in the operator's schema
  std::vector<c10::IValue> arguments;  // in the form of own_copies()
};

struct Recording {
  std::string version;  // of the LibTorch that recorded the calls
  std::vector<Call> calls;
};

// The result of a call.
struct Result {
  std::string failure;  // why there is no result; empty: there is one
  // The returned tensors, then the arguments that the call changed. A tensor is undefined if the
  // call gives another tensor when it is repeated, because some kernels return memory that they did
  // not write.
  std::vector<at::Tensor> tensors;
};

// All calls of a recording with one number of threads.
struct Replay {
  int64_t threads = 1;
  std::vector<Result> results;  // in the order of Replays::operators
};

struct Replays {
  std::string version;                        // of the LibTorch that replayed them
  std::string capability;                     // what that LibTorch uses of the processor: "AVX512"
  std::string recording;                      // the recording's version and its file's checksum
  std::vector<std::string> operators, types;  // an entry of each list for each call
  std::vector<Replay> runs;
};

std::string version_here();  // "2.15.0"
std::string capability_here();

// Whether own_copies() can copy the tensors in `values`: they are strided, on the CPU, neither
// quantized nor nested, and without a pending conjugation or negation.
bool can_copy(c10::ArrayRef<c10::IValue> values);

// The values with tensors in memory of their own, with the same strides. Tensors that shared memory
// share it in the copy, too. The copies have a form that a file can hold: lists, except those of
// numbers, become tuples; undefined tensors and generators become None; a tensor that stands for a
// plain number becomes the number.
std::vector<c10::IValue> own_copies(c10::ArrayRef<c10::IValue> values);

// Throw std::runtime_error, with the path, for a file that cannot be read or written, and
// std::invalid_argument for one that is not of this kind. `checksum` becomes the checksum of the
// file.
void save(const Recording& recording, const std::string& path);
void save(const Replays& replays, const std::string& path);
Recording load_recording(const std::string& path, std::string& checksum);
Replays load_replays(const std::string& path);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_CALLS_H_
