// TiedLayer: a layer that uses parameters which another layer has registered.
#ifndef TIED_TIED_LAYER_H_
#define TIED_TIED_LAYER_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe {

// A weight that two layers use is registered by the first of them only; otherwise parameters()
// lists it twice, and LibTorch's optimizers step it twice. In one process nobody has to know. Over
// several processes the later layer, which may be in another one, needs a copy there: it says so by
// deriving from this, beside torch::nn::Module, or any of its modules does.
//
// Example:
//   struct TiedHeadImpl : torch::nn::Module, gpipe::TiedLayer {
//     ...
//     std::vector<torch::Tensor> tied_parameters() const override { return {weight}; }
//     torch::Tensor weight;  // not registered: the embedding has it
//   };
class TiedLayer {
 public:
  // The parameters that it uses and has not registered.
  virtual std::vector<at::Tensor> tied_parameters() const = 0;

 protected:
  ~TiedLayer() = default;
};

}  // namespace gpipe

#endif  // TIED_TIED_LAYER_H_
