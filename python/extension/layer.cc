#include "python/extension/layer.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>

#include "python/extension/exceptions.h"
#include "python/extension/gil.h"
#include "python/extension/value.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

thread_local Layer* current_layer = nullptr;

// Sets `current_layer` while a layer runs. A layer never calls another layer, so scopes need not
// nest, but they do.
class CurrentLayer {
 public:
  explicit CurrentLayer(Layer* layer) : former_(std::exchange(current_layer, layer)) {}
  ~CurrentLayer() { current_layer = former_; }
  CurrentLayer(const CurrentLayer&) = delete;
  CurrentLayer& operator=(const CurrentLayer&) = delete;

 private:
  Layer* former_;
};

Mirror& mirror_of(py::handle module) {
  TORCH_CHECK(current_layer != nullptr, "a skip was used outside of a layer");
  Mirror* mirror = current_layer->find(module);
  TORCH_CHECK(mirror != nullptr && mirror->skippable() != nullptr,
              "a skippable module ran inside a layer without being one of its registered "
              "submodules, so its skips have no route: make it an attribute of that layer");
  return *mirror;
}

}  // namespace

std::vector<at::Tensor> Layer::forward(std::vector<at::Tensor> inputs) {
  const WithGil gil;
  const CurrentLayer current(this);
  try {
    const py::object given = to_python(std::move(inputs));
    try {
      const py::object result = module()(given);
      return tensors_of_output(result);
    } catch (const py::builtin_exception& error) {  // thrown by tensors_of_output()
      error.set_error();
      throw py::error_already_set();
    }
  } catch (py::error_already_set& error) {
    throw_on(error);
  }
}

MadeLayer make_layer(const py::object& module) {
  if (!Mirror::is_skippable(module)) {
    auto layer = std::make_shared<Layer>(module);
    return {layer, torch::nn::AnyModule(layer)};
  }
  auto layer = std::make_shared<WithSkips<Layer>>(module);
  return {layer, torch::nn::AnyModule(layer)};
}

bool in_layer() { return current_layer != nullptr; }

void stash(py::handle module, const std::string& name, py::handle tensor) {
  if (!tensor.is_none() && !THPVariable_Check(tensor.ptr())) {
    throw py::type_error("'" + name + "' was stashed as a " +
                         std::string(py::str(py::type::handle_of(tensor).attr("__name__"))) +
                         ": stash a Tensor or None");
  }
  mirror_of(module).stash_tensor(name,
                                 tensor.is_none() ? at::Tensor() : py::cast<at::Tensor>(tensor));
}

py::object pop(py::handle module, const std::string& name) {
  at::Tensor tensor = mirror_of(module).pop_tensor(name);
  if (!tensor.defined()) return py::none();
  return py::cast(std::move(tensor));
}

}  // namespace gpipe::python
