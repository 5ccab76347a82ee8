#include "gpipe/testing/programs/asked.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>

namespace gpipe::testing::programs {
namespace {

using at::Tensor;

bool has_hooks(const Tensor& leaf) { return !torch::autograd::impl::hooks(leaf).empty(); }

// Adds to the leaf's .grad, with the strides that autograd would give it.
void add_gradient(const Tensor& leaf, const Tensor& gradient) {
  if (!gradient.defined()) return;
  const c10::NoGradGuard no_grad;
  const Tensor before = leaf.grad();
  leaf.mutable_grad() = at::empty_like(leaf).copy_(before.defined() ? before + gradient : gradient);
}

}  // namespace

Asked::Asked(const Program& program, const Side& side, const Batch& batch) : program_(program) {
  if (program.asked == Ask::kAll) return;
  Random random(program.seed);
  std::set<const c10::TensorImpl*> seen;
  const auto consider = [&](const Tensor& leaf) {
    if (!leaf.requires_grad() || !seen.insert(leaf.unsafeGetTensorImpl()).second) return;
    all_.push_back(leaf);
    if (once_in(random, 2) && !has_hooks(leaf)) tensors_.push_back(leaf);
  };
  for (const Tensor& parameter : side.model->parameters()) consider(parameter);
  for (const Given& given : batch.inputs) consider(given.leaf);
}

void Asked::backward(const Tensor& loss) const {
  if (program_.asked == Ask::kBackward) {
    return torch::autograd::backward({loss}, {}, c10::nullopt, /*create_graph=*/false, tensors_);
  }
  const Tensors gradients =
      torch::autograd::grad({loss}, tensors_, {}, c10::nullopt, /*create_graph=*/false,
                            /*allow_unused=*/true);
  for (size_t k = 0; k < tensors_.size(); ++k) add_gradient(tensors_[k], gradients[k]);
}

void Asked::begin_plain() {
  for (const Tensor& leaf : all_) {
    before_.push_back(leaf.grad());
    leaf.mutable_grad().reset();
  }
}

void Asked::end_plain() {
  for (size_t k = 0; k < all_.size(); ++k) {
    const bool asked = std::any_of(tensors_.begin(), tensors_.end(),
                                   [&](const Tensor& tensor) { return tensor.is_same(all_[k]); });
    const Tensor gradient = all_[k].grad();
    all_[k].mutable_grad() = before_[k];
    if (asked) add_gradient(all_[k], gradient);
  }
}

}  // namespace gpipe::testing::programs
