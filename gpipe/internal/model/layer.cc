#include "gpipe/internal/model/layer.h"

#include "absl/strings/str_cat.h"
#include "text/shown.h"

namespace gpipe::internal {

std::string layer_text(const Layer& layer) {
  return absl::StrCat("layer ", layer.index, " (", text::in_quotes(layer.name), ")");
}

std::vector<std::vector<Layer>> partitions_of(const torch::nn::Sequential& model,
                                              const std::vector<int64_t>& balance) {
  const auto children = model->named_children();
  std::vector<std::vector<Layer>> partitions(balance.size());
  auto any = model->begin();
  size_t index = 0;
  for (size_t j = 0; j < balance.size(); ++j) {
    for (int64_t k = 0; k < balance[j]; ++k, ++index, ++any) {
      partitions[j].push_back({*any, children[index].key(), static_cast<int64_t>(index),
                               skip::CallPlan(*children[index].value())});
    }
  }
  return partitions;
}

}  // namespace gpipe::internal
