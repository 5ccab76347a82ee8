// Exceptions: a Python exception on its way through the pipeline and back, and the pipeline's own
// ones as Python's.
#ifndef PYTHON_EXTENSION_EXCEPTIONS_H_
#define PYTHON_EXTENSION_EXCEPTIONS_H_

#include <pybind11/pybind11.h>

namespace gpipe::python {

// Throws the exception as LibTorch's own code for Python does (python_error), so that any thread
// may catch it, and the caller gets the very object with its traceback.
//
// Requirements: the caller holds the GIL.
[[noreturn]] void throw_on(pybind11::error_already_set& error);

// For the whole process, once: exceptions of Python are given a note (add_note) with their stage,
// micro-batch and layer, C++ exceptions become Python's, and a run ends at Ctrl-C.
void install_exceptions();

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_EXCEPTIONS_H_
