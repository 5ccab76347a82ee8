#include "gpipe/internal/call/caller_modes.h"

#include <ATen/TracerMode.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <cstddef>

#include "gpipe/internal/threads/inside_pipeline.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

// LibTorch has one level of forward-mode derivatives.
constexpr uint64_t kLevel = 0;

// Whether this thread computes forward-mode derivatives. Otherwise no tensor has a tangent that
// counts.
bool has_tangents() {
  return c10::AutogradState::get_tls_state().get_fw_grad_mode() &&
         torch::autograd::ForwardADLevel::try_get_by_idx(kLevel) != nullptr;
}

void check_no_tangent(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK_VALUE(!tensor.defined() || !tensor._fw_grad(kLevel).defined(), name,
                    " has a tangent, but a pipeline computes no forward-mode derivatives: its "
                    "outputs would have none. Use the plain model for them (sequential())");
}

}  // namespace

void check_not_inside() {
  TORCH_CHECK_VALUE(
      !inside_pipeline(),
      "a pipeline was made or called from inside a layer of a pipeline, or its loss function; put "
      "the inner model's layers into the outer Sequential instead, or call it before and give its "
      "output as an input or a target");
}

void check_not_traced(const char* what) {
  TORCH_CHECK_VALUE(!at::tracer::impl::is_dispatch_enabled(), what,
                    " of a pipeline cannot be traced: torch::jit::tracer::trace would record the "
                    "outputs for this input as constants. Trace the plain model (sequential())");
}

void check_no_tangents(const char* kind, const std::vector<at::Tensor>& tensors) {
  if (!has_tangents()) return;
  for (size_t k = 0; k < tensors.size(); ++k) {
    check_no_tangent(tensors[k], std::string(kind) + " " + std::to_string(k));
  }
}

void check_no_tangents(const std::vector<std::shared_ptr<torch::nn::Module>>& layers) {
  if (!has_tangents()) return;
  for (size_t k = 0; k < layers.size(); ++k) {
    for (const auto& parameter : layers[k]->named_parameters()) {
      check_no_tangent(parameter.value(), "the parameter " + text::in_quotes(parameter.key()) +
                                              " of layer " + std::to_string(k));
    }
  }
}

}  // namespace gpipe::internal
