// Layer: a layer of the user's model, and what the pipeline has to know about it.
#ifndef GPIPE_INTERNAL_MODEL_LAYER_H_
#define GPIPE_INTERNAL_MODEL_LAYER_H_

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "skip/call.h"

namespace gpipe::internal {

struct Layer {
  torch::nn::AnyModule module;
  std::string name;  // its key in the user's Sequential
  int64_t index;     // its index in the whole model
  skip::CallPlan skips;
};

// The layer in the words of messages, like "layer 5 ('relu')": one line, whatever its key is.
std::string layer_text(const Layer& layer);

// Returns, by partition, its layers: balance[partition] of them, in the model's order. They are the
// model's own layers, not copies.
//
// Requirements: the balance fits the model, whose layers are not null.
std::vector<std::vector<Layer>> partitions_of(const torch::nn::Sequential& model,
                                              const std::vector<int64_t>& balance);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_LAYER_H_
