// Layer: a layer of the user's model, and what the pipeline has to know about it.
#ifndef GPIPE_INTERNAL_MODEL_LAYER_H_
#define GPIPE_INTERNAL_MODEL_LAYER_H_

#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <string>

#include "skip/call.h"

namespace gpipe::internal {

struct Layer {
  torch::nn::AnyModule module;
  std::string name;  // its key in the user's Sequential
  int64_t index;     // its index in the whole model
  skip::CallPlan skips;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_LAYER_H_
