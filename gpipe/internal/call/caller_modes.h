// Caller modes: modes of the calling thread under which a pipeline would silently give other
// results than the plain model.
#ifndef GPIPE_INTERNAL_CALL_CALLER_MODES_H_
#define GPIPE_INTERNAL_CALL_CALLER_MODES_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace gpipe::internal {

// Throws c10::ValueError inside a layer of a pipeline, or its loss function.
void check_not_inside();

// Throws c10::ValueError if this thread traces a call for TorchScript. `what`: "forward", say.
void check_not_traced(const char* what);

// Throws c10::ValueError for a tensor that has a tangent (forward-mode derivatives). `kind`:
// "input" or "target".
void check_no_tangents(const char* kind, const std::vector<at::Tensor>& tensors);
// Throws for a parameter of these layers that has a tangent.
void check_no_tangents(const std::vector<std::shared_ptr<torch::nn::Module>>& layers);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_CALLER_MODES_H_
