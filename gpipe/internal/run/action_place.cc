#include "gpipe/internal/run/action_place.h"

namespace gpipe::internal {

std::string place_of(const Action& action, bool recompute, const std::string& layer,
                     const std::string& layer_type) {
  const std::string what = recompute                                    ? "recompute"
                           : action.kind == ActionKind::kForward        ? "forward"
                           : action.kind == ActionKind::kWeightGradient ? "backward (of weights)"
                           : action.kind == ActionKind::kOffload        ? "offload"
                           : action.kind == ActionKind::kReload         ? "reload"
                                                                        : "backward";
  const std::string stage = "stage " + std::to_string(action.stage);
  return "in the " + what + " of " + stage + ", micro-batch " + std::to_string(action.micro_batch) +
         (layer == stage ? "" : ", " + layer) + (layer_type.empty() ? "" : ", a " + layer_type);
}

}  // namespace gpipe::internal
