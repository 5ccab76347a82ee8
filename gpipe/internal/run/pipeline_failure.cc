#include <string>

#include "gpipe/internal/run/action_place.h"
#include "gpipe/internal/run/failure.h"
#include "gpipe/internal/run/pipeline.h"

namespace gpipe::internal {

std::optional<Failure> Pipeline::last_failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return last_failure_;
}

std::exception_ptr Pipeline::describe(const RunFailure& failure) {
  if (!failure.action) return failure.error;
  Action action = *failure.action;
  if (const auto early = stages_[action.stage].early_recompute()) action.micro_batch = *early;
  // The stage has run nothing since the failure, so it still knows its last layer.
  const Stage& stage = stages_[action.stage];
  const std::string layer = stage.current_layer();
  const std::string type = stage.current_layer_type();
  const bool recompute = stage.recomputing();
  std::optional<OutOfMemory> memory;
  if (is_out_of_memory(failure.error)) memory = works_[action.stage].out_of_memory();
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    last_failure_ = Failure{action.stage,
                            action.micro_batch,
                            action.kind != ActionKind::kForward,
                            recompute,
                            layer,
                            memory,
                            type};
  }
  std::string where = place_of(action, recompute, layer, type);
  if (memory) where += "; " + shortage_text(*memory);
  if (recompute && !stage.lost_buffer().empty()) {
    where += "; before that, the recompute had changed " + stage.lost_buffer() +
             " once more, whose former value is not known, so that the change stays";
  }
  try {
    rethrow_with(failure.error, where);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace gpipe::internal
