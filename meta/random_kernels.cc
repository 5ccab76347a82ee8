#include <c10/util/Exception.h>

#include "meta/kernel.h"

// Kernels of random operators. On meta no numbers are drawn, and the generators stay as they are.

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors multinomial(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  const int64_t count = in.integer("num_samples");
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "multinomial: prob_dist must have 1 or 2 ",
              "dimensions, got ", self.sizes());
  TORCH_CHECK(count > 0, "multinomial: num_samples must be above 0, got ", count);
  std::vector<int64_t> sizes = self.sizes().vec();
  TORCH_CHECK(in.flag("replacement") || count <= sizes.back(), "multinomial: cannot draw ", count,
              " of ", sizes.back(), " without replacement");
  sizes.back() = count;
  return {made_like(self, sizes, at::kLong)};
}

Tensors native_dropout(const Arguments& in) {
  const at::Tensor input = in.tensor("input");
  return {same_as(input), element_wise({input}, at::kBool)};
}

Tensors randperm(const Arguments& in) {
  const int64_t n = in.integer("n");
  TORCH_CHECK(n >= 0, "randperm: n must not be negative, got ", n);
  return {in.tensor("out").resize_({n})};
}

}  // namespace

std::vector<MetaKernel> random_kernels() {
  return {
      {"multinomial", multinomial},
      {"native_dropout", native_dropout},
      like("native_dropout_backward", "grad_output"),
      {"randperm.generator_out", randperm},
      contiguous_like("poisson", "self"),
      broadcast("binomial", {"count", "prob"}),
      broadcast("bernoulli.out", {"self"}, "out"),
  };
}

}  // namespace gpipe::internal
