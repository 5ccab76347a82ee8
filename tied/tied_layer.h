// TiedLayer: a layer that uses parameters which another layer has registered.
#ifndef TIED_TIED_LAYER_H_
#define TIED_TIED_LAYER_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe {

// A weight that two layers use is registered by the first of them only; otherwise parameters()
// lists it twice, and LibTorch's optimizers step it twice. On one device nobody has to know. Over
// several processes or devices the later layer, which may be on another one, needs a copy there: it
// says so by deriving from this, beside torch::nn::Module, or any of its modules does.
//
// Example:
//   struct TiedHeadImpl : torch::nn::Module, gpipe::TiedLayer {
//     ...
//     std::vector<torch::Tensor> tied_parameters() const override { return {weight}; }
//     void use_tied_parameters(const std::vector<torch::Tensor>& those) override {
//       weight = those[0];
//     }
//     torch::Tensor weight;  // not registered: the embedding has it
//   };
class TiedLayer {
 public:
  // The parameters that it uses and has not registered.
  virtual std::vector<at::Tensor> tied_parameters() const = 0;

  // From now on it uses these, in the order of tied_parameters(), which then returns them. A
  // pipeline over several devices calls it when a run begins, with copies on the layer's device,
  // and when the run ends, with the parameters themselves; so the forward must use the tensor that
  // it was given last. A layer without it can be tied on one device only, as it is told.
  virtual void use_tied_parameters(const std::vector<at::Tensor>& /*parameters*/) {}

 protected:
  ~TiedLayer() = default;
};

}  // namespace gpipe

#endif  // TIED_TIED_LAYER_H_
