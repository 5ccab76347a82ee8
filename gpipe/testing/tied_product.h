// TiedProduct: a layer that multiplies by a weight that other layers have registered, too.
#ifndef GPIPE_TESTING_TIED_PRODUCT_H_
#define GPIPE_TESTING_TIED_PRODUCT_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace gpipe::testing {

struct TiedProductImpl : torch::nn::Module {
  explicit TiedProductImpl(const at::Tensor& weight)
      : weight(register_parameter("weight", weight)) {}
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }
  at::Tensor weight;
};
TORCH_MODULE(TiedProduct);

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_TIED_PRODUCT_H_
