// make_pass: a mini-batch that is about to go through a pipeline.
#ifndef GPIPE_INTERNAL_RUN_MAKE_PASS_H_
#define GPIPE_INTERNAL_RUN_MAKE_PASS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/tensors/value.h"

namespace gpipe::internal {

// The properties of a pass that a call must give. The rest of the plan has defaults.
struct PassTerms {
  MiniBatch mini_batch;
  uint64_t step_seed = 0;
  bool record = true;                   // whether gradients will be asked for
  std::vector<Checkpoint> checkpoints;  // [stage]
  // The whole inputs, as the first layer takes them; none if another process has the first stage.
  std::optional<Value> inputs;
  std::vector<int64_t> shared_inputs;  // as in GPipeOptions
};

// Called on the thread of the call, before it makes any autograd node: nodes that this thread makes
// from here on count as the pipeline's.
std::unique_ptr<Pass> make_pass(const Pipeline& pipeline, PassTerms terms);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_MAKE_PASS_H_
