#include "gpipe/internal/model/given_tensors.h"

#include "gpipe/internal/tensors/finite.h"
#include "gpipe/internal/tensors/value.h"

namespace gpipe::internal {
namespace {

// Calls `visit` with each tensor and, for a stash, its key. The key is null for the output.
template <typename Visit>
void for_each_given(const Layer& layer, torch::nn::AnyValue& output, const skip::Tracker& tracker,
                    const Visit& visit) {
  layer.skips.for_each_stash([&](const skip::Key& key) {
    if (const at::Tensor* const stashed = tracker.find(key)) visit(stashed, &key);
  });
  for (const at::Tensor* const tensor : tensors_in(output)) visit(tensor, nullptr);
}

}  // namespace

std::vector<const at::Tensor*> given_tensors(const Layer& layer, torch::nn::AnyValue& output,
                                             const skip::Tracker& tracker) {
  std::vector<const at::Tensor*> given;
  for_each_given(layer, output, tracker, [&](const at::Tensor* tensor, const skip::Key* /*key*/) {
    given.push_back(tensor);
  });
  return given;
}

void check_finite_given(const Layer& layer, torch::nn::AnyValue& output,
                        const skip::Tracker& tracker) {
  for_each_given(layer, output, tracker, [](const at::Tensor* tensor, const skip::Key* key) {
    check_finite(*tensor, key ? "the skip " + key->to_text() : "the output of a layer");
  });
}

}  // namespace gpipe::internal
