// Recorder: writes down the calls of operators that a program makes, forward and backward.
#ifndef GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_RECORDER_H_
#define GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_RECORDER_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "experiments/libtorch_versions/calls.h"

namespace gpipe::experiments {

// Takes the calls of LibTorch's own operators that compute something on the CPU: not those that are
// made of others, which are seen themselves, nor views, nor what returns memory that nobody has
// written. Of calls that differ in values alone it takes the first.
class Recorder {
 public:
  // `most`: how many calls of an operator with a type from one source.
  explicit Recorder(int64_t most) : most_(most) { recording_.version = version_here(); }

  // While it lives, what this thread calls is recorded. A source's name stands with its calls.
  // Scopes do not nest.
  class Scope {
   public:
    Scope(Recorder& recorder, std::string source);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    c10::impl::IncludeDispatchKeyGuard guard_;
  };

  const Recording& recording() const { return recording_; }
  // Operators with calls whose tensors cannot be copied.
  const std::set<std::string>& left_out() const { return left_out_; }

  // For the kernel that sees the calls: before the call, and after it if that gave something.
  std::optional<Call> begin(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);
  void end(Call call, c10::ArrayRef<c10::IValue> results);

 private:
  const int64_t most_;
  std::string source_;
  std::set<std::string> seen_;
  std::set<std::string> left_out_;
  std::map<std::tuple<std::string, std::string, std::string>, int64_t> counts_;
  Recording recording_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_RECORDER_H_
