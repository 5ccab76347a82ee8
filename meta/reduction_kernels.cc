#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "meta/kernel.h"

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

// The sizes of `x` without the dimensions `dims`, or, if `keep`, with ones in their places. Empty
// `dims` stand for all dimensions.
std::vector<int64_t> reduced(const at::Tensor& x, std::vector<int64_t> dims, bool keep) {
  for (int64_t& dim : dims) dim = at::maybe_wrap_dim(dim, x.dim());
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const bool gone = dims.empty() || std::find(dims.begin(), dims.end(), d) != dims.end();
    if (!gone) sizes.push_back(x.size(d));
    if (gone && keep) sizes.push_back(1);
  }
  return sizes;
}

Tensors one_number(const Arguments& in) { return {made_like(in.tensor("self"), {})}; }

// The type of a sum or product: `dtype` if it is given, otherwise int64 for integers and the type
// of `x` for others.
c10::ScalarType sum_type(const Arguments& in, const at::Tensor& x) {
  if (!in["dtype"].isNone()) return in["dtype"].toScalarType();
  return c10::isIntegralType(x.scalar_type(), /*includeBool=*/true) ? at::kLong : x.scalar_type();
}

Tensors prod(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  return {made_like(self, {}, sum_type(in, self))};
}

Tensors nansum(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  return {
      made_like(self, reduced(self, in.integers("dim"), in.flag("keepdim")), sum_type(in, self))};
}

Tensors trace(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  const bool integral = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return {made_like(self, {}, integral ? at::kLong : self.scalar_type())};
}

Tensors count_nonzero(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  return {made_like(self, reduced(self, in.integers("dim"), false), at::kLong)};
}

// The result of a standard deviation or variance.
at::Tensor moment(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  return made_like(self, reduced(self, in.integers("dim"), in.flag("keepdim")),
                   c10::toRealValueType(self.scalar_type()));
}

Tensors one_moment(const Arguments& in) { return {moment(in)}; }

Tensors moment_and_mean(const Arguments& in) {
  at::Tensor first = moment(in);
  return {first, made_like(in.tensor("self"), first.sizes())};
}

std::vector<int64_t> without_dim(const Arguments& in) {
  return reduced(in.tensor("self"), {in.integer("dim")}, in.flag("keepdim"));
}

// Gives the arguments `values` and `indices`, which get the results, their sizes.
Tensors chosen_into(const Arguments& in) {
  const std::vector<int64_t> sizes = without_dim(in);
  return {in.tensor("values").resize_(sizes), in.tensor("indices").resize_(sizes)};
}

Tensors chosen(const Arguments& in) {
  const at::Tensor self = in.tensor("self");
  const std::vector<int64_t> sizes = without_dim(in);
  return {made_like(self, sizes), made_like(self, sizes, at::kLong)};
}

Tensors cdist(const Arguments& in) {
  const at::Tensor x1 = in.tensor("x1"), x2 = in.tensor("x2");
  std::vector<int64_t> sizes =
      at::infer_size(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  sizes.insert(sizes.end(), {x1.size(-2), x2.size(-2)});
  return {made_like(x1, sizes)};
}

Tensors cdist_backward(const Arguments& in) {
  // The sizes come from the distances and not from their gradient, which has the same sizes but
  // another name since LibTorch 2.14.
  const at::Tensor x1 = in.tensor("x1");
  std::vector<int64_t> sizes = in.tensor("cdist").sizes().vec();
  sizes.back() = x1.size(-1);
  return {made_like(x1, sizes)};
}

}  // namespace

std::vector<MetaKernel> reduction_kernels() {
  return {
      {"max", one_number},
      {"min", one_number},
      {"median", one_number},
      {"nanmedian", one_number},
      {"dot", one_number},
      {"vdot", one_number},
      {"prod", prod},
      {"nansum", nansum},
      {"trace", trace},
      {"count_nonzero.dim_IntList", count_nonzero},
      {"std.correction", one_moment},
      {"var.correction", one_moment},
      {"std_mean.correction", moment_and_mean},
      {"var_mean.correction", moment_and_mean},
      {"median.dim_values", chosen_into},
      {"nanmedian.dim_values", chosen_into},
      {"kthvalue.values", chosen_into},
      {"mode", chosen},
      // These two operators only fill tensors that their caller has made.
      {"_cummax_helper", [](const Arguments&) { return Tensors(); }},
      {"_cummin_helper", [](const Arguments&) { return Tensors(); }},
      {"_cdist_forward", cdist},
      {"_cdist_backward", cdist_backward},
  };
}

}  // namespace gpipe::internal
