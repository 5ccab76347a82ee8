#include "gpipe/loss_fn.h"

#include <c10/util/Exception.h>

namespace gpipe {

LossFn::OfLists LossFn::on_lists(OfTensors function) {
  if (!function) return nullptr;
  return [function = std::move(function)](const Tensors& outputs, const Tensors& targets) {
    TORCH_CHECK_VALUE(outputs.size() != 1 || !targets.empty(),
                      "the loss function takes an output and a target, but the call was given no "
                      "target: give it one, step({input}, {target}, loss_fn), or write a loss "
                      "function that takes lists (const Tensors& outputs, const Tensors& targets)");
    TORCH_CHECK_VALUE(outputs.size() == 1 && targets.size() == 1,
                      "the loss function takes one output and one target, but there are ",
                      outputs.size(), " outputs and ", targets.size(),
                      " targets; write one that takes lists (const Tensors& outputs, const "
                      "Tensors& targets)");
    return function(outputs.front(), targets.front());
  };
}

}  // namespace gpipe
