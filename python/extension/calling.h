// calling: calls a function of Python from C++ code that does not have the GIL.
#ifndef PYTHON_EXTENSION_CALLING_H_
#define PYTHON_EXTENSION_CALLING_H_

#include <pybind11/pybind11.h>

#include "python/extension/exceptions.h"
#include "python/extension/gil.h"

namespace gpipe::python {

// Calls `call` with the GIL and returns its result. Python's exceptions are thrown on as throw_on()
// throws them, and pybind11's own (type_error) as exceptions of Python.
template <typename Call>
auto calling(const Call& call) {
  const WithGil gil;
  try {
    try {
      return call();
    } catch (const pybind11::builtin_exception& error) {
      error.set_error();
      throw pybind11::error_already_set();
    }
  } catch (pybind11::error_already_set& error) {
    throw_on(error);
  }
}

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_CALLING_H_
