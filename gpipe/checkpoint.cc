#include "gpipe/checkpoint.h"

#include "gpipe/checkpoint_phase.h"

namespace gpipe {
namespace {

thread_local internal::CheckpointPhase current_phase = internal::CheckpointPhase::kNone;
thread_local internal::PhaseQuestions questions;

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

bool is_checkpointing() {
  questions.checkpointing = true;
  return current_phase == internal::CheckpointPhase::kCheckpointing;
}

bool is_recomputing() {
  questions.recomputing = true;
  return current_phase == internal::CheckpointPhase::kRecomputing;
}

namespace internal {

CheckpointPhase checkpoint_phase() { return current_phase; }

PhaseQuestions& phase_questions() { return questions; }

CheckpointPhaseScope::CheckpointPhaseScope(CheckpointPhase phase) : former_(current_phase) {
  current_phase = phase;
}

CheckpointPhaseScope::~CheckpointPhaseScope() { current_phase = former_; }

}  // namespace internal
}  // namespace gpipe
