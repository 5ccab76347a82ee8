// BetweenRuns: keeps runs of a pipeline waiting during a call that reads or writes what they use.
#ifndef GPIPE_INTERNAL_CALL_BETWEEN_RUNS_H_
#define GPIPE_INTERNAL_CALL_BETWEEN_RUNS_H_

#include <optional>

#include "gpipe/internal/run/pipeline.h"
#include "gpipe/runtime/run_lock.h"

namespace gpipe::internal {

// Holds the run lock while it lives, and first waits until a run of another thread ends. Calls that
// read or write parameters, buffers, gradients or states of the optimizer make one.
//
// Requirements: over processes it is made within in_call(), on all ranks. So all of them take the
// lock of the call first, and the run lock second. The user's code that runs within the call, such
// as an optimizer's step, must not call a function of the pipeline.
class BetweenRuns {
 public:
  // `pipeline`: null if there are no layers.
  explicit BetweenRuns(const Pipeline* pipeline) {
    if (pipeline != nullptr) scope_.emplace(pipeline->run_lock());
  }

 private:
  std::optional<RunLock::Scope> scope_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_BETWEEN_RUNS_H_
