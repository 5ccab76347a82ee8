#include "gpipe/internal/model/registered.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>

#include "text/shown.h"

namespace gpipe::internal {

void check_registered(const torch::nn::Sequential& model) {
  const auto children = model->named_children();
  for (const auto& child : children) {
    TORCH_CHECK_VALUE(child.value() != nullptr, "the layer ", text::in_quotes(child.key()),
                      " of the model is a null pointer; give a module or leave it out");
  }
  const size_t count = std::max(model->size(), children.size());
  for (size_t k = 0; k < count; ++k) {
    const bool runs = k < model->size();
    if (runs && k < children.size() && model->ptr(k) == children[k].value()) continue;
    TORCH_CHECK_VALUE(
        !runs || std::any_of(children.begin(), children.end(),
                             [&](const auto& child) { return child.value() == model->ptr(k); }),
        "layer ", k, " of the model, ", model->ptr(k)->name(),
        ", runs but has no name: a push_back that throws for its name (one that is there already, "
        "is empty or has a dot) leaves its layer behind, and replace_module changes the name "
        "alone; build the Sequential anew, with a new name for each layer");
    TORCH_CHECK_VALUE(false, "the model has the name ",
                      text::in_quotes(children[std::min(k, children.size() - 1)].key()),
                      ", but another layer runs in its place, or none: register_module, "
                      "unregister_module and replace_module change the names of a Sequential, not "
                      "what it runs; build it anew with push_back");
  }
}

}  // namespace gpipe::internal
