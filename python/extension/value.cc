#include "python/extension/value.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe::python {
namespace {

namespace py = pybind11;

std::string type_of(py::handle value) {
  return py::str(py::type::handle_of(value).attr("__name__"));
}

// What a user can do with a value that cannot go between layers, as the end of a message.
std::string advice_on(py::handle value, bool element) {
  if (py::isinstance<py::dict>(value)) {
    return ": let the layer give tuple(d.values()), and the next one take it apart";
  }
  if (py::isinstance<py::list>(value)) return ": make it a tuple";
  if (element && value.is_none()) {
    return ": leave it out, or give torch.empty(N, 0) in its place";
  }
  return ": let the layers pass each other a tensor or a tuple of tensors";
}

at::Tensor mark_for(const at::Tensor& tensor) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  return at::empty({rows, 0}, tensor.options().dtype(at::kBool).requires_grad(false));
}

bool is_mark(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.size(1) == 0 && tensor.scalar_type() == at::kBool;
}

}  // namespace

std::vector<at::Tensor> to_tensors(py::handle value, const std::string& what) {
  if (THPVariable_Check(value.ptr())) {
    return {THPVariable_Unpack(value.ptr())};
  }
  if (!PyTuple_Check(value.ptr())) {
    throw py::type_error("expected Tensor or tuple of Tensors as " + what + ", but got " +
                         type_of(value) + advice_on(value, /*element=*/false));
  }
  std::vector<at::Tensor> tensors;
  for (const py::handle element : py::reinterpret_borrow<py::tuple>(value)) {
    if (!THPVariable_Check(element.ptr())) {
      throw py::type_error("expected Tensor as element " + std::to_string(tensors.size()) +
                           " of the tuple that is " + what + ", but got " + type_of(element) +
                           advice_on(element, /*element=*/true));
    }
    tensors.push_back(THPVariable_Unpack(element.ptr()));
  }
  // A tuple of one tensor gets a mark. A user's tuple whose last tensor looks like a mark gets one,
  // too, so that to_python() removes only the mark.
  if (tensors.size() == 1 || (tensors.size() > 1 && is_mark(tensors.back()))) {
    tensors.push_back(mark_for(tensors.front()));
  }
  return tensors;
}

py::object to_python(std::vector<at::Tensor> tensors) {
  if (tensors.size() == 1) return py::cast(std::move(tensors.front()));
  if (tensors.size() > 1 && is_mark(tensors.back())) tensors.pop_back();
  py::tuple tuple(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) tuple[k] = py::cast(std::move(tensors[k]));
  return tuple;
}

}  // namespace gpipe::python
