// Layer: a module of Python as a layer of a pipeline.
#ifndef PYTHON_EXTENSION_LAYER_H_
#define PYTHON_EXTENSION_LAYER_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>
#include <torch/nn/modules/container/any.h>

#include <memory>
#include <string>
#include <vector>

#include "python/extension/mirror.h"

namespace gpipe::python {

// Thread-safety: forward may run on several threads at once, which take turns by the GIL.
class Layer : public Mirror {
 public:
  explicit Layer(const pybind11::object& module) : Mirror(module), skips_(mirrors_with_skips()) {}

  // Calls the Python module, hooks included. Throws the module's exception as python_error. Also
  // throws a TypeError as python_error if the module returns something that cannot go between
  // layers.
  std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs);

  // Whether a module with skips was added, replaced or removed since this layer was made. Then its
  // pipeline, which has the routes of the former ones, must be made again.
  bool has_other_skips() { return mirrors_with_skips() != skips_; }

 private:
  // What the pipeline's plan points at (skip::CallPlan), alive for as long as this layer is.
  std::vector<std::shared_ptr<Mirror>> skips_;
};

struct MadeLayer {
  std::shared_ptr<Layer> layer;
  torch::nn::AnyModule any;
};
MadeLayer make_layer(const pybind11::object& module);

// Whether a layer of a pipeline runs on this thread. For Python's skippable modules.
bool in_layer();
// None is a payload, too. Both throw c10::Error for a module that no layer has registered, and what
// Skippable's stash() and pop() throw.
void stash(pybind11::handle module, const std::string& name, pybind11::handle tensor);
pybind11::object pop(pybind11::handle module, const std::string& name);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_LAYER_H_
