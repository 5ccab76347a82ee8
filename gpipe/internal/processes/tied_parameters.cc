#include "gpipe/internal/processes/tied_parameters.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "text/shown.h"
#include "tied/tied_layer.h"

namespace gpipe::internal {

std::vector<std::pair<std::string, at::Tensor>> used_parameters(torch::nn::Module& layer) {
  std::vector<std::pair<std::string, at::Tensor>> used;
  for (const auto& parameter : layer.named_parameters()) {
    if (parameter.value().defined()) used.emplace_back(parameter.key(), parameter.value());
  }
  for (const std::shared_ptr<torch::nn::Module>& module : layer.modules()) {
    const auto* const tied = dynamic_cast<const TiedLayer*>(module.get());
    if (tied == nullptr) continue;
    for (const at::Tensor& parameter : tied->tied_parameters()) {
      if (parameter.defined()) used.emplace_back("", parameter);
    }
  }
  return used;
}

Places places_of(const StageMap& stage_map, size_t stages) {
  Places places;
  for (size_t stage = 0; stage < stages; ++stage) {
    places.push_back(stage_map.process_of_stage(static_cast<int64_t>(stage)));
  }
  return places;
}

Places places_of(const std::vector<c10::Device>& of_stages) {
  Places places;
  for (const c10::Device& device : of_stages) {
    places.push_back(std::find(of_stages.begin(), of_stages.end(), device) - of_stages.begin());
  }
  return places;
}

std::vector<TiedParameter> tied_parameters_of(const std::vector<std::vector<Layer>>& partitions,
                                              const Places& places) {
  std::vector<TiedParameter> all;
  std::unordered_map<const c10::TensorImpl*, size_t> numbers;
  for (size_t stage = 0; stage < partitions.size(); ++stage) {
    for (const Layer& layer : partitions[stage]) {
      for (const auto& [name, tensor] : used_parameters(*layer.module.ptr())) {
        const auto number = numbers.emplace(tensor.unsafeGetTensorImpl(), all.size()).first->second;
        if (number == all.size()) {
          all.push_back({name.empty() ? "" : text::shown(layer.name + "." + name), tensor, {}});
        }
        std::vector<int64_t>& stages = all[number].stages;
        if (stages.empty() || stages.back() != static_cast<int64_t>(stage)) {
          stages.push_back(static_cast<int64_t>(stage));
        }
      }
    }
  }
  const auto place_of = [&](int64_t stage) { return places.at(static_cast<size_t>(stage)); };
  const auto is_in_one_place = [&](const TiedParameter& tied) {
    const int64_t first = place_of(tied.stages.front());
    return std::all_of(tied.stages.begin(), tied.stages.end(),
                       [&](int64_t stage) { return place_of(stage) == first; });
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_in_one_place), all.end());
  for (const TiedParameter& tied : all) {
    TORCH_CHECK_VALUE(
        !tied.name.empty(), "partition ", tied.stages.front(), " uses a parameter of shape ",
        tied.tensor.sizes(),
        " (TiedLayer::tied_parameters) that no layer before has registered, and "
        "another process or device uses it, too; register it in the first layer that uses "
        "it");
  }
  return all;
}

std::vector<TiedEdge> edges_of(const std::vector<TiedParameter>& tied, const Places& places) {
  std::vector<TiedEdge> edges;
  for (size_t number = 0; number < tied.size(); ++number) {
    const std::vector<int64_t>& stages = tied[number].stages;
    for (size_t k = 1; k < stages.size(); ++k) {
      // Stages in the same place exchange their terms through LeafSums, without an edge.
      if (places.at(static_cast<size_t>(stages[k - 1])) ==
          places.at(static_cast<size_t>(stages[k]))) {
        continue;
      }
      edges.push_back({number, stages[k - 1], stages[k]});
    }
  }
  return edges;
}

}  // namespace gpipe::internal
