// even_balance, exact_cut: two cuts of a language model over devices, and what each device then
// holds.
#ifndef GPIPE_EXPERIMENTS_LLAMA_MEMORY_CUTS_H_
#define GPIPE_EXPERIMENTS_LLAMA_MEMORY_CUTS_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "balance/memory/memory_plan.h"
#include "experiments/frame/program.h"
#include "gpipe/checkpoint.h"
#include "models/transformer_options.h"

namespace gpipe::experiments {

// The model that is trained, and how: under 1F1B with AdamW, one row of the mini-batch in each
// micro-batch. Cuts of it are planned on the meta device, which takes no memory.
struct LlamaCase {
  models::TransformerOptions model;
  // The type of parameters, activations, gradients and AdamW's state. The logits are converted to
  // float32 for the loss.
  c10::ScalarType type = c10::kBFloat16;
  int64_t rows = 0;    // rows of a mini-batch
  int64_t tokens = 0;  // tokens of a row
  int64_t devices = 0;
  Checkpoint checkpoint = Checkpoint::kAlways;
};

struct PlannedCut {
  std::vector<int64_t> balance;
  balance::MemoryPlan plan;  // for CUDA devices
  // Predicted seconds of a step without the optimizer, from counted operations on a nominal device.
  // Only good for comparing cuts.
  double step = 0;

  int64_t fullest() const;  // bytes of tensors on the device that holds most
};

// The cut that one would write by hand: the same number of blocks on each device, the embedding on
// the first device, norm and head on the last one. Throws c10::ValueError if the devices do not
// divide the blocks.
std::vector<int64_t> even_balance(int64_t blocks, int64_t devices);

// Plans this cut. `context` is checked repeatedly.
PlannedCut plan_cut(const LlamaCase& llama_case, const std::vector<int64_t>& balance,
                    const RunContext& context = {});

// The cut whose fullest device holds the least memory. It may lie between the two halves of a
// block. The search is exact for the memory that a profile predicts. A memory plan of the result
// then corrects the prediction, and the search runs again until the cut repeats. Throws
// c10::ValueError for fewer layers than devices.
PlannedCut exact_cut(const LlamaCase& llama_case, const RunContext& context = {});

// PlannedCut::step of a cut, without planning it.
double predicted_step(const LlamaCase& llama_case, const std::vector<int64_t>& balance);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LLAMA_MEMORY_CUTS_H_
