#include "gpipe/schedule/first_difference.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe::internal {
namespace {

const char* name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "the forward";
    case ActionKind::kBackward:
      return "the backward";
    case ActionKind::kInputGradient:
      return "the gradients of inputs";
    case ActionKind::kWeightGradient:
      return "the gradients of weights";
    case ActionKind::kOffload:
      return "the offload";
    case ActionKind::kReload:
      return "the reload";
  }
  return "an action";
}

std::string text_of(const Action& action) {
  return action.to_text() + ", " + name_of(action.kind) + " of stage " +
         std::to_string(action.stage) + " for micro-batch " + std::to_string(action.micro_batch) +
         ",";
}

}  // namespace

std::string first_difference(const Schedule& a, const std::string& on_a, const Schedule& b,
                             const std::string& on_b) {
  const auto counts = [&](const std::string& who, int64_t of_a, int64_t of_b, const char* what) {
    return who + " has " + std::to_string(of_a) + " " + what + " " + on_a + ", and " +
           std::to_string(of_b) + " " + on_b;
  };
  if (a.stages() != b.stages()) return counts("it", a.stages(), b.stages(), "stages");
  if (a.micro_batches() != b.micro_batches()) {
    return counts("it", a.micro_batches(), b.micro_batches(), "micro-batches");
  }
  if (a.workers() != b.workers()) return counts("it", a.workers(), b.workers(), "workers");
  for (int64_t worker = 0; worker < a.workers(); ++worker) {
    const std::vector<Action>& of_a = a.actions(worker);
    const std::vector<Action>& of_b = b.actions(worker);
    const size_t both = std::min(of_a.size(), of_b.size());
    const auto index = static_cast<size_t>(
        std::mismatch(of_a.begin(), of_a.begin() + static_cast<int64_t>(both), of_b.begin()).first -
        of_a.begin());
    const std::string name = "worker " + std::to_string(worker);
    if (index < both) {
      return "action " + std::to_string(index) + " of " + name + " (both counted from 0) is " +
             text_of(of_a[index]) + " " + on_a + ", and " + text_of(of_b[index]) + " " + on_b;
    }
    if (of_a.size() != of_b.size()) {
      return counts(name, static_cast<int64_t>(of_a.size()), static_cast<int64_t>(of_b.size()),
                    "actions") +
             "; up to there they agree";
    }
  }
  return "";
}

}  // namespace gpipe::internal
