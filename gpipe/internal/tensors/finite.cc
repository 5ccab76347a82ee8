#include "gpipe/internal/tensors/finite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace gpipe::internal {

std::string what_is_not_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta() || tensor.numel() == 0) return "";
  if (!tensor.is_floating_point() && !tensor.is_complex()) return "";
  c10::NoGradGuard no_grad;
  at::Tensor values = tensor.detach();
  // Embeddings give sparse gradients. Their values may repeat a row, which makes no difference
  // here.
  if (values.is_sparse()) values = values._values();
  if (values.layout() != c10::kStrided || at::isfinite(values).all().item<bool>()) return "";
  const int64_t nan = at::isnan(values).sum().item<int64_t>();
  const int64_t infinite = at::isfinite(values).logical_not().sum().item<int64_t>() - nan;
  const std::string total_text = " of " + std::to_string(values.numel()) + " values ";
  const auto are = [](int64_t count) { return count == 1 ? "is " : "are "; };
  std::string text;
  if (nan > 0) text = std::to_string(nan) + total_text + are(nan) + "nan";
  if (infinite > 0) {
    text +=
        (nan > 0 ? ", " + std::to_string(infinite) + " " : std::to_string(infinite) + total_text);
    text += are(infinite) + std::string("infinite");
  }
  return text;
}

void check_finite(const at::Tensor& tensor, std::string_view what) {
  const std::string found = what_is_not_finite(tensor);
  TORCH_CHECK_VALUE(found.empty(), "StepOptions::check_finite: ", found,
                    ", for the first time, in ", what);
}

}  // namespace gpipe::internal
