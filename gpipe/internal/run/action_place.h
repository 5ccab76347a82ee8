// ActionPlace: where an action runs, in the words of messages.
#ifndef GPIPE_INTERNAL_RUN_ACTION_PLACE_H_
#define GPIPE_INTERNAL_RUN_ACTION_PLACE_H_

#include <string>

#include "gpipe/schedule/action.h"

namespace gpipe::internal {

// A text like "in the forward of stage 1, micro-batch 3, layer 5 ('relu'), a torch::nn::ReLUImpl".
// `recompute`: whether the layer ran in the recompute of a backward. `layer`: "stage 1" if no layer
// is known.
std::string place_of(const Action& action, bool recompute, const std::string& layer,
                     const std::string& layer_type);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_ACTION_PLACE_H_
