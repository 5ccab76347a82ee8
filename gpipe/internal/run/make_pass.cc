#include "gpipe/internal/run/make_pass.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include <utility>

#include "gpipe/internal/batch/caller_inputs.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

std::unique_ptr<Pass> make_pass(const Pipeline& pipeline, PassTerms terms) {
  auto pass =
      std::make_unique<Pass>(pipeline.stages(), std::move(terms.mini_batch), &pipeline.stage_map());
  pass->plan.step_seed = terms.step_seed;
  pass->plan.record = terms.record;
  pass->plan.checkpoints = std::move(terms.checkpoints);
  pass->plan.thread = at::RecordFunction::currentThreadId();
  pass->plan.begin = at::sequence_number::peek();
  if (!terms.inputs) return pass;
  Packet whole;
  whole.kind = terms.inputs->kind;
  for (at::Tensor& input : terms.inputs->tensors) {
    Item item;
    item.needs_grad = terms.record && input.defined() && input.requires_grad();
    item.tensor = std::move(input);
    whole.items.push_back(std::move(item));
  }
  pass->inputs =
      CallerInputs(std::move(whole), pass->mini_batch, terms.record, terms.shared_inputs);
  return pass;
}

}  // namespace gpipe::internal
