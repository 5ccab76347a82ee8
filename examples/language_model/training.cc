#include "examples/language_model/training.h"

#include <utility>

namespace language_model {

std::unique_ptr<torch::optim::AdamW> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                    double weight_decay) {
  examples::AdamWGroups adamw = examples::adamw_groups(parameters, weight_decay);
  return std::make_unique<torch::optim::AdamW>(std::move(adamw.groups), adamw.defaults);
}

}  // namespace language_model
