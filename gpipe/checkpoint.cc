#include "gpipe/checkpoint.h"

namespace gpipe {
namespace {

thread_local internal::CheckpointPhase current_phase = internal::CheckpointPhase::kNone;

}  // namespace

const char* to_text(Checkpoint mode) {
  switch (mode) {
    case Checkpoint::kAlways:
      return "always";
    case Checkpoint::kExceptLast:
      return "except_last";
    case Checkpoint::kNever:
      return "never";
  }
  return "unknown";
}

bool is_checkpointing() { return current_phase == internal::CheckpointPhase::kCheckpointing; }

bool is_recomputing() { return current_phase == internal::CheckpointPhase::kRecomputing; }

namespace internal {

CheckpointPhaseScope::CheckpointPhaseScope(CheckpointPhase phase) : former_(current_phase) {
  current_phase = phase;
}

CheckpointPhaseScope::~CheckpointPhaseScope() { current_phase = former_; }

}  // namespace internal
}  // namespace gpipe
