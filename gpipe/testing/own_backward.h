// OwnBackward: a user's function whose backward runs another backward, as some users' checkpointing
// code does.
#ifndef GPIPE_TESTING_OWN_BACKWARD_H_
#define GPIPE_TESTING_OWN_BACKWARD_H_

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace gpipe::testing {

// Computes x.matmul(weight), of shapes {N, K} and {K, M}. Its backward adds to the weight's .grad
// itself.
struct OwnBackward : torch::autograd::Function<OwnBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x,
                            at::Tensor weight) {
    context->save_for_backward({x, weight});
    const at::NoGradGuard no_grad;
    return x.matmul(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::AutoGradMode grad(true);
    const at::Tensor x = saved[0].detach().requires_grad_();
    x.matmul(saved[1]).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_OWN_BACKWARD_H_
