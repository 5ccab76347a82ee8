// InPlaceOfGradScope: another tensor in the place of a leaf's .grad.
#ifndef GPIPE_INTERNAL_BACKWARD_IN_PLACE_OF_GRAD_H_
#define GPIPE_INTERNAL_BACKWARD_IN_PLACE_OF_GRAD_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace gpipe::internal {

// While this object lives, a gradient that would be accumulated into the leaf's .grad goes into
// `sum`. The leaf's post-accumulate hooks do not run, because they are for .grad.
//
// Requirements: `leaf` and `sum` outlive this object.
class InPlaceOfGradScope {
 public:
  InPlaceOfGradScope(const at::Tensor& leaf, at::Tensor& sum) : leaf_(leaf), sum_(sum) { swap(); }
  ~InPlaceOfGradScope() { swap(); }
  InPlaceOfGradScope(const InPlaceOfGradScope&) = delete;
  InPlaceOfGradScope& operator=(const InPlaceOfGradScope&) = delete;

 private:
  void swap() {
    std::swap(leaf_.mutable_grad(), sum_);
    std::swap(torch::autograd::impl::post_acc_grad_hooks(leaf_), hook_);
  }

  const at::Tensor& leaf_;
  at::Tensor& sum_;
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> hook_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_IN_PLACE_OF_GRAD_H_
