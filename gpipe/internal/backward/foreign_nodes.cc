#include "gpipe/internal/backward/foreign_nodes.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace gpipe::internal {

void ForeignNodes::enter(const torch::autograd::Node& node, int64_t stage) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [entry, fresh] = stages_.try_emplace(&node, stage);
  TORCH_CHECK(entry->second == stage, "stages ", std::min(stage, entry->second), " and ",
              std::max(stage, entry->second),
              " both use a tensor that was computed outside the pipeline (its graph has ",
              node.name(),
              "), and their backwards would run through its graph at the same time; compute it "
              "inside the layers, give it to the model as an input, or detach() it");
}

}  // namespace gpipe::internal
