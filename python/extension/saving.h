// define_saving: checkpoints (gpipe/saving/saving.h) with an optimizer of Python.
#ifndef PYTHON_EXTENSION_SAVING_H_
#define PYTHON_EXTENSION_SAVING_H_

#include <pybind11/pybind11.h>

namespace gpipe::python {

// Adds save_checkpoint, load_checkpoint, load_weights, read_progress and has_checkpoint to the
// extension module. python/gpipe/saving.py has their texts.
void define_saving(pybind11::module_& module);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_SAVING_H_
