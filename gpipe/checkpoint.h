// Checkpoint: which micro-batches drop their activations after forward and recompute them in
// backward, and what a layer may ask about that.
#ifndef GPIPE_CHECKPOINT_H_
#define GPIPE_CHECKPOINT_H_

#include <cstdint>

namespace gpipe {

enum class Checkpoint : uint8_t {
  kAlways,      // every micro-batch is checkpointed
  kExceptLast,  // all except those whose backward is their worker's next action after their
                // forward: the last micro-batch under Schedule::gpipe and in forward(), all
                // micro-batches of the last stage under 1F1B (the default)
  kNever,       // no micro-batch: fastest, most memory
};

// The mode as text: "always", "except_last" or "never".
const char* to_text(Checkpoint mode);

// True on a thread that runs the first forward of a checkpointed micro-batch: its graph will be
// dropped, and the layer called again with the same input. False everywhere else.
bool is_checkpointing();

// True on a thread that runs a checkpointed forward again, just before its backward. A layer with
// side effects (a counter, running statistics) should skip them here.
bool is_recomputing();

namespace internal {

enum class CheckpointPhase : uint8_t { kNone, kCheckpointing, kRecomputing };

// Sets the phase that this thread's layers see; restores the former one on exit.
class CheckpointPhaseScope {
 public:
  explicit CheckpointPhaseScope(CheckpointPhase phase);
  ~CheckpointPhaseScope();
  CheckpointPhaseScope(const CheckpointPhaseScope&) = delete;
  CheckpointPhaseScope& operator=(const CheckpointPhaseScope&) = delete;

 private:
  CheckpointPhase former_;
};

}  // namespace internal
}  // namespace gpipe

#endif  // GPIPE_CHECKPOINT_H_
