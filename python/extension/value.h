// Value: what goes between layers of Python, a tensor or a tuple of tensors, as tensors.
#ifndef PYTHON_EXTENSION_VALUE_H_
#define PYTHON_EXTENSION_VALUE_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace gpipe::python {

// The tensors of a tensor or a tuple of tensors: a call's argument `name`, or what a layer gives.
// Throws pybind11::type_error that says what to do for anything else.
//
// A tuple of one tensor gets a second, empty tensor behind it, a mark of shape {rows, 0}. Without
// the mark, the tuple could not be told from a tensor. So the form of a value goes with each
// micro-batch, wherever that goes, and calls that overlap may have different forms.
std::vector<at::Tensor> tensors_of_argument(pybind11::handle value, const std::string& name);
std::vector<at::Tensor> tensors_of_output(pybind11::handle value);

// The value that one of the two made these tensors of, or some rows of that value.
pybind11::object to_python(std::vector<at::Tensor> tensors);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_VALUE_H_
