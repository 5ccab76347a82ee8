// Value: what goes between layers of Python, a tensor or a tuple of tensors, as tensors.
#ifndef PYTHON_EXTENSION_VALUE_H_
#define PYTHON_EXTENSION_VALUE_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace gpipe::python {

// The tensors of a tensor or a tuple of tensors. Throws pybind11::type_error that names `what` for
// anything else.
//
// A tuple of one tensor gets a second, empty tensor behind it, a mark of shape {rows, 0}. Without
// the mark, the tuple could not be told from a tensor. So the form of a value goes with each
// micro-batch, wherever that goes, and calls that overlap may have different forms.
std::vector<at::Tensor> to_tensors(pybind11::handle value, const std::string& what);

// The value that to_tensors() made these tensors of, or some rows of that value.
pybind11::object to_python(std::vector<at::Tensor> tensors);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_VALUE_H_
