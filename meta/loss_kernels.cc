#include <ATen/core/Reduction.h>

#include "meta/kernel.h"

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

bool is_reduced(const Arguments& in) { return in.integer("reduction") != at::Reduction::None; }

// The result is one number, or one for each element.
Tensors element_wise_loss(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  if (is_reduced(in)) return {made_like(self, {})};
  return {element_wise({self, in.tensor("target")})};
}

Tensors grad_in(const Arguments& in, const char* out) {
  return {element_wise({in.tensor("self"), in.tensor("target"), in.tensor("grad_output")},
                       std::nullopt, in.tensor(out))};
}

Tensors nll_loss2d(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  std::vector<int64_t> sizes;
  if (!is_reduced(in)) sizes = {self.size(0), self.size(2), self.size(3)};
  return {made_like(self, sizes), made_like(self, {})};
}

// The result is one number, or one for each sample.
at::Tensor margin_loss(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  std::vector<int64_t> sizes;
  if (!is_reduced(in) && self.dim() > 1) sizes = {self.size(0)};
  return made_like(self, sizes);
}

}  // namespace

std::vector<MetaKernel> loss_kernels() {
  return {
      {"binary_cross_entropy",
       [](const Arguments& in) -> Tensors {
         const at::Tensor self = in.tensor("self");
         return {is_reduced(in) ? made_like(self, {}) : same_as(self)};
       }},
      like("binary_cross_entropy_backward", "self"),
      {"huber_loss", element_wise_loss},
      {"huber_loss_backward.out", [](const Arguments& in) { return grad_in(in, "grad_input"); }},
      contiguous_like("mse_loss_backward", "self"),
      {"smooth_l1_loss_backward.grad_input",
       [](const Arguments& in) { return grad_in(in, "grad_input"); }},
      {"nll_loss2d_forward", nll_loss2d},
      contiguous_like("nll_loss2d_backward", "self"),
      {"multi_margin_loss", [](const Arguments& in) -> Tensors { return {margin_loss(in)}; }},
      contiguous_like("multi_margin_loss_backward", "self"),
      {"multilabel_margin_loss_forward",
       [](const Arguments& in) -> Tensors {
         const at::Tensor self = in.tensor("self");
         return {margin_loss(in), made_like(self, in.tensor("target").sizes())};
       }},
      contiguous_like("multilabel_margin_loss_backward", "self"),
  };
}

}  // namespace gpipe::internal
