// given_tensors: the tensors that a layer's forward has given: its stashes and its output.
#ifndef GPIPE_INTERNAL_MODEL_GIVEN_TENSORS_H_
#define GPIPE_INTERNAL_MODEL_GIVEN_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>

#include <vector>

#include "gpipe/internal/model/layer.h"
#include "skip/tracker.h"

namespace gpipe::internal {

// `output`: what the layer returned. `tracker`: where its stashes wait. The pointers are valid
// until one of both changes.
std::vector<const at::Tensor*> given_tensors(const Layer& layer, torch::nn::AnyValue& output,
                                             const skip::Tracker& tracker);

// Throws c10::ValueError for the first of these tensors that is not finite.
void check_finite_given(const Layer& layer, torch::nn::AnyValue& output,
                        const skip::Tracker& tracker);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_GIVEN_TENSORS_H_
