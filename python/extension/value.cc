#include "python/extension/value.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <utility>

namespace gpipe::python {
namespace {

namespace py = pybind11;

std::string type_of(py::handle value) {
  return py::str(py::type::handle_of(value).attr("__name__"));
}

}  // namespace

std::vector<at::Tensor> to_tensors(py::handle value, Form& form, const std::string& what) {
  if (THPVariable_Check(value.ptr())) {
    form.set(false);
    return {THPVariable_Unpack(value.ptr())};
  }
  if (!PyTuple_Check(value.ptr())) {
    throw py::type_error("expected Tensor or tuple of Tensors as " + what + ", but got " +
                         type_of(value) +
                         ": let the layers pass each other a tensor or a tuple of tensors");
  }
  form.set(true);
  std::vector<at::Tensor> tensors;
  for (const py::handle element : py::reinterpret_borrow<py::tuple>(value)) {
    if (!THPVariable_Check(element.ptr())) {
      throw py::type_error("expected Tensor as element " + std::to_string(tensors.size()) +
                           " of the tuple that is " + what + ", but got " + type_of(element) +
                           ": let the layers pass each other a tensor or a tuple of tensors");
    }
    tensors.push_back(THPVariable_Unpack(element.ptr()));
  }
  return tensors;
}

py::object to_python(std::vector<at::Tensor> tensors, const Form& form) {
  if (tensors.size() == 1 && !form.is_tuple()) return py::cast(std::move(tensors.front()));
  py::tuple tuple(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) tuple[k] = py::cast(std::move(tensors[k]));
  return tuple;
}

}  // namespace gpipe::python
