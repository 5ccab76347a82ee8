// checkpoint_phase: what is_checkpointing() and is_recomputing() answer, for the pipeline itself,
// and whether layers have asked.
#ifndef GPIPE_CHECKPOINT_PHASE_H_
#define GPIPE_CHECKPOINT_PHASE_H_

#include "gpipe/checkpoint.h"

namespace gpipe::internal {

// This thread's phase. Unlike the functions for layers, it leaves no trace in phase_questions().
CheckpointPhase checkpoint_phase();

// The questions that this thread's layers have asked. A layer that asks knows that it is run twice.
struct PhaseQuestions {
  bool checkpointing = false;
  bool recomputing = false;
};
PhaseQuestions& phase_questions();

}  // namespace gpipe::internal

#endif  // GPIPE_CHECKPOINT_PHASE_H_
