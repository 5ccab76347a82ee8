#include "gpipe/internal/processes/ties.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace gpipe::internal {

std::vector<Tie> ties_of(const std::vector<std::vector<Layer>>& partitions,
                         const Residence& residence) {
  std::vector<Tie> all;
  std::unordered_map<const c10::TensorImpl*, size_t> numbers;
  for (size_t stage = 0; stage < partitions.size(); ++stage) {
    for (const Layer& layer : partitions[stage]) {
      for (const auto& parameter : layer.module.ptr()->named_parameters()) {
        const at::Tensor& tensor = parameter.value();
        if (!tensor.defined()) continue;
        const auto number = numbers.emplace(tensor.unsafeGetTensorImpl(), all.size()).first->second;
        if (number == all.size()) all.push_back({layer.name + "." + parameter.key(), tensor, {}});
        std::vector<int64_t>& stages = all[number].stages;
        if (stages.empty() || stages.back() != static_cast<int64_t>(stage)) {
          stages.push_back(static_cast<int64_t>(stage));
        }
      }
    }
  }
  const auto is_in_one_process = [&](const Tie& tie) {
    const int64_t first = residence.process_of_stage(tie.stages.front());
    return std::all_of(tie.stages.begin(), tie.stages.end(), [&](int64_t stage) {
      return residence.process_of_stage(stage) == first;
    });
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_in_one_process), all.end());
  return all;
}

std::vector<TieEdge> edges_of(const std::vector<Tie>& ties, const Residence& residence) {
  std::vector<TieEdge> edges;
  for (size_t number = 0; number < ties.size(); ++number) {
    const std::vector<int64_t>& stages = ties[number].stages;
    for (size_t k = 1; k < stages.size(); ++k) {
      // Within a process the stages share LeafSums.
      if (residence.process_of_stage(stages[k - 1]) == residence.process_of_stage(stages[k])) {
        continue;
      }
      edges.push_back({number, stages[k - 1], stages[k]});
    }
  }
  return edges;
}

}  // namespace gpipe::internal
