// define_grad_scaler: gpipe::GradScaler for optimizers of Python.
#ifndef PYTHON_EXTENSION_GRAD_SCALER_H_
#define PYTHON_EXTENSION_GRAD_SCALER_H_

#include <pybind11/pybind11.h>

namespace gpipe::python {

// Adds GradScaler to the extension module. python/gpipe/grad_scaler.py has its texts.
void define_grad_scaler(pybind11::module_& module);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_GRAD_SCALER_H_
