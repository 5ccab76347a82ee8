#include "gpipe/internal/boundary/ports.h"

#include <algorithm>
#include <utility>

namespace gpipe::internal {

std::vector<skip::SkipEdge> hops(const std::vector<skip::SkipEdge>& skips) {
  std::vector<skip::SkipEdge> result;
  for (const skip::SkipEdge& skip : skips) {
    for (int32_t stage = skip.source_partition; stage < skip.target_partition; ++stage) {
      result.push_back(skip);
      result.back().source_partition = stage;
      result.back().target_partition = stage + 1;
    }
  }
  return result;
}

Ports ports_of(int64_t stage, const Routes& routes, const std::vector<skip::SkipEdge>& skips,
               const std::vector<size_t>& tied) {
  Ports ports;
  ports.inputs.push_back({std::nullopt, stage - 1});
  for (const RouteId id : routes.incoming(stage)) {
    const auto number = routes.skip(id);
    if (!number) continue;
    if (*number < skips.size()) {
      ports.inputs.push_back({skips[*number].key, routes[id].source_stage});
    } else {
      ports.tied_in.push_back(tied.at(*number - skips.size()));
    }
  }
  ports.outputs.push_back({std::nullopt, stage + 1});
  std::vector<std::pair<int32_t, size_t>> uses;  // the layer that pops a skip, the skip's port
  for (const RouteId id : routes.outgoing(stage)) {
    const auto number = routes.skip(id);
    if (!number) continue;
    if (*number >= skips.size()) {
      ports.tied_out.push_back(tied.at(*number - skips.size()));
    } else {
      uses.emplace_back(skips[*number].target_layer, ports.outputs.size());
      ports.outputs.push_back({skips[*number].key, routes[id].target_stage});
    }
  }
  // The last use comes first. Skips are used after the activation, so the skip that is popped last
  // comes first, and the activation comes last.
  std::stable_sort(uses.begin(), uses.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [layer, port] : uses) ports.gradient_order.push_back(port);
  ports.gradient_order.push_back(0);
  return ports;
}

}  // namespace gpipe::internal
