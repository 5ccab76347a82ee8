#include <ATen/ops/result_type.h>

#include "meta/kernel.h"

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor where(const Arguments& in, const at::Tensor& out = {}) {
  const at::Tensor self = in.tensor("self"), other = in.tensor("other");
  return element_wise({in.tensor("condition"), self, other}, at::result_type(self, other), out);
}

// Both gradients have the broadcast size. Autograd sums the weight's gradient to the weight's size.
Tensors prelu_backward(const Arguments& in) {
  const auto grad = [&in] {
    return element_wise({in.tensor("self"), in.tensor("weight"), in.tensor("grad_output")});
  };
  return {grad(), grad()};
}

}  // namespace

std::vector<MetaKernel> pointwise_kernels() {
  return {
      // Activations.
      broadcast("relu", {"self"}),
      broadcast("hardswish", {"self"}),
      broadcast("hardswish_backward", {"grad_output", "self"}),
      broadcast("hardtanh", {"self"}),
      broadcast("hardtanh_backward", {"grad_output", "self"}),
      {"log_sigmoid_forward",
       [](const Arguments& in) -> Tensors {
         // The CPU keeps exp(-|x|) for the backward; CUDA keeps nothing.
         const at::Tensor self = in.tensor("self");
         return {same_as(self, c10::MemoryFormat::Contiguous),
                 same_as(self, c10::MemoryFormat::Contiguous)};
       }},
      like("log_sigmoid_backward", "grad_output"),
      like("mish_backward", "self"),
      broadcast("_prelu_kernel", {"self", "weight"}),
      {"_prelu_kernel_backward", prelu_backward},
      contiguous_like("rrelu_with_noise", "self"),
      contiguous_like("glu_backward", "self"),
      // Arithmetic.
      {"where.self", [](const Arguments& in) -> Tensors { return {where(in)}; }},
      broadcast("floor_divide", {"self", "other"}),
      broadcast("rsub.Tensor", {"self", "other"}),
      {"remainder.Scalar_Tensor",
       [](const Arguments& in) -> Tensors {
         const at::Tensor other = in.tensor("other");
         return {element_wise({other}, at::result_type(in["self"].toScalar(), other))};
       }},
      {"isnan",
       [](const Arguments& in) -> Tensors {
         return {element_wise({in.tensor("self")}, at::kBool)};
       }},
      broadcast("logit", {"self"}),
      broadcast("__lshift__.Tensor", {"self", "other"}),
      broadcast("__rshift__.Tensor", {"self", "other"}),
      broadcast("__lshift__.Scalar", {"self"}),
      broadcast("__rshift__.Scalar", {"self"}),
      contiguous_like("_logcumsumexp", "self"),
      // For these operators the form with `out` is enough, because LibTorch's other forms call it.
      {"where.self_out",
       [](const Arguments& in) -> Tensors { return {where(in, in.tensor("out"))}; }},
      broadcast("abs.out", {"self"}, "out"),
      broadcast("nan_to_num.out", {"self"}, "out"),
      broadcast("logical_and.out", {"self", "other"}, "out"),
      broadcast("logical_not.out", {"self"}, "out"),
      broadcast("logical_or.out", {"self", "other"}, "out"),
      broadcast("logical_xor.out", {"self", "other"}, "out"),
  };
}

}  // namespace gpipe::internal
