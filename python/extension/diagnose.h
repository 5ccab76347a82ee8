// define_diagnose: why training is slow in a pipeline (diagnose/diagnose.h), for Python.
#ifndef PYTHON_EXTENSION_DIAGNOSE_H_
#define PYTHON_EXTENSION_DIAGNOSE_H_

#include <pybind11/pybind11.h>

namespace gpipe::python {

// Adds diagnose to the extension module. python/gpipe/diagnosis.py has its texts.
void define_diagnose(pybind11::module_& module);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_DIAGNOSE_H_
