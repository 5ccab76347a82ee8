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

// Records the calls of LibTorch's own operators that compute something on the CPU. It leaves out
// operators that only call others (those are recorded themselves), views, and operators that return
// unwritten memory. If calls differ only in the values of tensors, the first is recorded.
class Recorder {
 public:
  // `most`: how many calls to keep for each operator, type and source.
  explicit Recorder(int64_t most) : most_(most) { recording_.version = version_here(); }

  // While a Scope lives, the calls of this thread are recorded, as calls of `source`. Scopes do not
  // nest.
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
  // The operators of calls that were left out, because their tensors cannot be copied.
  const std::set<std::string>& left_out() const { return left_out_; }

  // For the kernel that intercepts the calls. It calls begin() before a call, and, if begin()
  // returned a Call, end() after it.
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
