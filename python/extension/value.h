// Value: what goes between layers of Python, a tensor or a tuple of tensors, as tensors.
#ifndef PYTHON_EXTENSION_VALUE_H_
#define PYTHON_EXTENSION_VALUE_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <string>
#include <vector>

namespace gpipe::python {

// Whether a value is a tuple, which one tensor alone does not tell. It is the same for all
// micro-batches of a call, so it need not go with them. Thread-safe.
class Form {
 public:
  void set(bool is_tuple) { is_tuple_ = is_tuple; }
  bool is_tuple() const { return is_tuple_; }

 private:
  std::atomic<bool> is_tuple_{false};
};

// The tensors of a tensor or a tuple of tensors; notes which it is. Throws pybind11::type_error
// that names `what` for anything else.
std::vector<at::Tensor> to_tensors(pybind11::handle value, Form& form, const std::string& what);

pybind11::object to_python(std::vector<at::Tensor> tensors, const Form& form);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_VALUE_H_
