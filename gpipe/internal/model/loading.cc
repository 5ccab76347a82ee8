#include "gpipe/internal/model/loading.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>

#include <algorithm>
#include <cctype>

#include "text/shown.h"

namespace gpipe::internal {
namespace {

constexpr char kAdvice[] =
    "; nothing was loaded. Build the model as it was when it was saved. To take over some of its "
    "layers only, load it into a Sequential of the saved shape and copy the parameters that fit";

bool is_number(const std::string& key) {
  return !key.empty() &&
         std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Appends a key to a list like "'3', '4'".
void add_to_list(std::string& list, const std::string& key) {
  list += (list.empty() ? "" : ", ") + text::in_quotes(key);
}

}  // namespace

void check_layers_of(torch::serialize::InputArchive& archive, const torch::nn::Module& module) {
  const std::vector<std::string> keys = archive.keys();
  const auto children = module.named_children();
  std::string missing;
  for (const auto& child : children) {
    if (!child.value()->is_serializable()) continue;
    if (std::find(keys.begin(), keys.end(), child.key()) == keys.end()) {
      add_to_list(missing, child.key());
    }
  }
  std::string surplus;
  for (const std::string& key : keys) {
    if (is_number(key) && !children.contains(key)) add_to_list(surplus, key);
  }
  TORCH_CHECK_VALUE(missing.empty() && surplus.empty(), "the checkpoint is of another model: ",
                    missing.empty() ? "" : "it has no layers " + missing,
                    missing.empty() || surplus.empty() ? "" : ", and ",
                    surplus.empty() ? "" : "the pipeline has no layers " + surplus, kAdvice);
}

StateBeforeLoad::StateBeforeLoad(const torch::nn::Module& module) {
  const auto add = [&](const torch::OrderedDict<std::string, at::Tensor>& tensors) {
    for (const auto& entry : tensors) {
      if (!entry.value().defined()) continue;
      entries_.push_back({entry.key(), entry.value(), entry.value().variable_data()});
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
}

void StateBeforeLoad::check_shapes() const {
  constexpr int kMost = 4;
  std::string text;
  int others = 0;
  for (const Entry& entry : entries_) {
    if (entry.tensor.sizes() == entry.data.sizes()) continue;
    if (++others > kMost) continue;
    text += (text.empty() ? "" : ", ") + text::in_quotes(entry.name) + " of shape " +
            c10::str(entry.tensor.sizes()) + " for " + c10::str(entry.data.sizes());
  }
  TORCH_CHECK_VALUE(others == 0, "the checkpoint is of another model: it has ", text,
                    others > kMost ? " and " + std::to_string(others - kMost) + " more" : "",
                    kAdvice);
}

void StateBeforeLoad::restore() const {
  c10::NoGradGuard no_grad;
  for (const Entry& entry : entries_) at::Tensor(entry.tensor).set_data(entry.data);
}

}  // namespace gpipe::internal
