// Exceptions: carries Python's exceptions through the pipeline and back, and turns C++ ones into
// Python's.
#ifndef PYTHON_EXTENSION_EXCEPTIONS_H_
#define PYTHON_EXTENSION_EXCEPTIONS_H_

#include <pybind11/pybind11.h>

namespace gpipe::python {

// Throws the exception as LibTorch's own code for Python does (python_error), so that any thread
// may catch it, and the caller gets the very object with its traceback.
//
// Requirements: the caller holds the GIL.
[[noreturn]] void throw_on(pybind11::error_already_set& error);

// Runs Python's handlers of signals, if the caller is the main thread, and throws their exception:
// KeyboardInterrupt for Ctrl-C. For threads that wait without the GIL.
void check_signals();

// Call it once for the whole process. From then on Python's exceptions get a note (add_note) with
// their stage, micro-batch and layer, C++ exceptions become Python's, and Ctrl-C ends a run.
void install_exceptions();

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_EXCEPTIONS_H_
