#include "skip/layout.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "absl/strings/str_join.h"
#include "skip/skippable.h"

namespace gpipe::skip {
namespace {

auto order(const SkipEdge& edge) {
  return std::tie(edge.target_partition, edge.source_partition, edge.key);
}

}  // namespace

bool operator==(const SkipEdge& a, const SkipEdge& b) {
  return a.key == b.key && a.source_layer == b.source_layer && a.target_layer == b.target_layer &&
         a.source_partition == b.source_partition && a.target_partition == b.target_partition;
}

Layout Layout::inspect(const torch::nn::Sequential& module, const std::vector<int64_t>& balance) {
  verify_skippables(module);
  const auto text = [&] { return "{" + absl::StrJoin(balance, ", ") + "}"; };
  const auto layers = static_cast<int64_t>(module->size());
  std::vector<int32_t> partition_of;
  for (size_t partition = 0; partition < balance.size(); ++partition) {
    TORCH_CHECK_VALUE(balance[partition] > 0, "every block of the balance must have at least one ",
                      "layer, but block ", partition, " of ", text(), " has ", balance[partition]);
    TORCH_CHECK_VALUE(balance[partition] <= layers - static_cast<int64_t>(partition_of.size()),
                      "the balance ", text(), " has more layers than the model (", layers,
                      "): let it sum up to that");
    partition_of.insert(partition_of.end(), balance[partition], static_cast<int32_t>(partition));
  }
  TORCH_CHECK_VALUE(static_cast<int64_t>(partition_of.size()) == layers, "the balance ", text(),
                    " has ", partition_of.size(), " layers and the model ", layers,
                    ": let it sum up to that");

  std::unordered_map<Key, int32_t> source_of;
  std::unordered_map<Key, int32_t> target_of;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const torch::nn::Module& top = *module->ptr(layer);
    for (const Skippable* skippable : skippables_of(top)) {
      for (const auto& name : skippable->stashes()) {
        source_of.emplace(skippable->key(name), static_cast<int32_t>(layer));
      }
      for (const auto& name : skippable->pops()) {
        target_of.emplace(skippable->key(name), static_cast<int32_t>(layer));
      }
    }
  }

  Layout layout;
  for (const auto& [key, source] : source_of) {
    const int32_t target = target_of.at(key);
    layout.edges_.push_back({key, source, target, partition_of[source], partition_of[target]});
  }
  std::sort(layout.edges_.begin(), layout.edges_.end(),
            [](const SkipEdge& a, const SkipEdge& b) { return order(a) < order(b); });
  for (const auto& edge : layout.edges_) {
    if (edge.source_partition != edge.target_partition) layout.crossing_.push_back(edge);
  }
  return layout;
}

std::string Layout::to_text() const {
  std::string text;
  for (const auto& edge : edges_) {
    text += edge.key.to_text() + ": layer " + std::to_string(edge.source_layer) + " (partition " +
            std::to_string(edge.source_partition) + ") -> layer " +
            std::to_string(edge.target_layer) + " (partition " +
            std::to_string(edge.target_partition) + ")\n";
  }
  return text;
}

}  // namespace gpipe::skip
