// TiedLayer: a layer that uses parameters which another layer has registered.
#ifndef TIED_TIED_LAYER_H_
#define TIED_TIED_LAYER_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe {

// If two layers use a weight, only the first of them registers it. Otherwise parameters() lists it
// twice, and LibTorch's optimizers step it twice. On one device no more is needed. Over several
// processes or devices, the later layer may need a copy of the weight on its own device. It says so
// by deriving from TiedLayer besides torch::nn::Module; one of its submodules may do this instead.
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
  // Returns the parameters that the layer uses but has not registered.
  virtual std::vector<at::Tensor> tied_parameters() const = 0;

  // Makes the layer use `those`, in the order of tied_parameters(), which then returns them. A
  // pipeline over several devices calls this when a run begins, with copies on the layer's device,
  // and when the run ends, with the parameters themselves. The forward must use the tensors of the
  // last call. A layer that does not override this can be tied on one device only; the error says
  // so.
  virtual void use_tied_parameters(const std::vector<at::Tensor>& /*parameters*/) {}

 protected:
  ~TiedLayer() = default;
};

}  // namespace gpipe

#endif  // TIED_TIED_LAYER_H_
