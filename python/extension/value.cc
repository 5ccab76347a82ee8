#include "python/extension/value.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe::python {
namespace {

namespace py = pybind11;

std::string type_of(py::handle value) {
  return py::str(py::type::handle_of(value).attr("__name__"));
}

// What to do with a value that cannot go between layers, as the end of a message.
std::string advice_on_output(py::handle value, bool element) {
  if (py::hasattr(value, "keys")) {
    return ": let the layer give tuple(d.values()), and the next one take it apart";
  }
  if (py::isinstance<py::list>(value)) return ": make it a tuple";
  if (element && value.is_none()) {
    return ": leave it out, or give torch.empty(N, 0) in its place";
  }
  return ": let the layers pass each other a tensor or a tuple of tensors";
}

bool holds_tensors(py::handle value) {
  if (!PyList_Check(value.ptr()) && !PyTuple_Check(value.ptr())) return false;
  const py::sequence elements = py::reinterpret_borrow<py::sequence>(value);
  return std::any_of(elements.begin(), elements.end(),
                     [](py::handle each) { return THPVariable_Check(each.ptr()); });
}

// The same for what a user gives to a call. `name`: its argument's.
std::string advice_on_argument(py::handle value, const std::string& name, bool element) {
  const auto made_by = [&](const std::string& function) {
    return element ? ": put " + function + "(it) in its place"
                   : ": give " + function + "(" + name + ")";
  };
  if (py::hasattr(value, "__array__")) return made_by("torch.as_tensor");
  if (py::hasattr(value, "keys")) {
    if (element) return ": put its tensors into the tuple itself";
    return ": give tuple(" + name + ".values()), which " +
           (name == "target" ? "the loss function" : "the first layer") + " takes apart";
  }
  if (holds_tensors(value) || (element && PyTuple_Check(value.ptr()))) {
    return element ? ": put its tensors into the tuple itself" : made_by("tuple");
  }
  if (py::isinstance<py::list>(value)) return made_by("torch.tensor") + ", if it has numbers";
  if (PyNumber_Check(value.ptr())) {
    return ": give a tensor with N rows, such as torch.full((N,), " + std::string(py::repr(value)) +
           ")";
  }
  if (element && value.is_none()) {
    return ": leave it out, or give torch.empty(N, 0) in its place";
  }
  return ": give a tensor with N rows, or a tuple of such tensors";
}

at::Tensor mark_for(const at::Tensor& tensor) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  return at::empty({rows, 0}, tensor.options().dtype(at::kBool).requires_grad(false));
}

bool is_mark(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.size(1) == 0 && tensor.scalar_type() == at::kBool;
}

// `advice_on`: what to do with a wrong value, or a wrong element of a tuple.
template <typename AdviceOn>
std::vector<at::Tensor> tensors_of(py::handle value, const std::string& what,
                                   const AdviceOn& advice_on) {
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

}  // namespace

std::vector<at::Tensor> tensors_of_argument(py::handle value, const std::string& name) {
  return tensors_of(value, "the " + name, [&](py::handle wrong, bool element) {
    return advice_on_argument(wrong, name, element);
  });
}

std::vector<at::Tensor> tensors_of_output(py::handle value) {
  return tensors_of(value, "what the layer gives", advice_on_output);
}

py::object to_python(std::vector<at::Tensor> tensors) {
  if (tensors.size() == 1) return py::cast(std::move(tensors.front()));
  if (tensors.size() > 1 && is_mark(tensors.back())) tensors.pop_back();
  py::tuple tuple(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) tuple[k] = py::cast(std::move(tensors[k]));
  return tuple;
}

}  // namespace gpipe::python
