#include "gpipe/extend.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "gpipe/internal/model/registered.h"
#include "text/shown.h"

namespace gpipe {

void extend(torch::nn::Sequential& model, const std::string& name,
            const torch::nn::Sequential& block) {
  TORCH_CHECK_VALUE(!name.empty() && name.find('.') == std::string::npos, "extend: the name ",
                    text::in_quotes(name), " is empty or has a dot; give one like \"encoder\"");
  TORCH_CHECK_VALUE(model.get() != block.get(), "extend: the block ", text::in_quotes(name),
                    " is the model itself; make a block of its own");
  internal::check_registered(model);
  internal::check_registered(block);
  const auto there = model->named_children();
  std::vector<std::string> names;
  for (const auto& layer : block->named_children()) {
    names.push_back(name + "_" + layer.key());
    TORCH_CHECK_VALUE(!there.contains(names.back()), "extend: the model has a layer ",
                      text::in_quotes(names.back()), "; give another name than ",
                      text::in_quotes(name));
  }
  for (size_t k = 0; k < names.size(); ++k) {
    model->push_back(std::move(names[k]), *(block->begin() + static_cast<std::ptrdiff_t>(k)));
  }
}

}  // namespace gpipe
