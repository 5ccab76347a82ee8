#include "balance/commands/command_model.h"

#include <stdexcept>

#include "meta/meta_scope.h"

namespace gpipe::balance {

torch::nn::Sequential CommandModel::make_on_meta() const {
  const MetaScope scope;
  torch::nn::Sequential model = make();
  if (model.is_empty() || model->is_empty()) {
    throw std::invalid_argument(
        title() + " has no layers: its function gives an empty torch::nn::Sequential");
  }
  return model;
}

std::string one_layer_hint(int64_t layers) {
  if (layers != 1) return "";
  return "; a pipeline is cut between the layers of a torch::nn::Sequential, and the only one of "
         "this holds all: list its parts, one after another (docs/guide/03-sequential-model.md)";
}

}  // namespace gpipe::balance
