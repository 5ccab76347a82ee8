// add_balance: profiles, balances and plans of modules of Python. What users call is in
// python/gpipe/balance.py.
#ifndef PYTHON_EXTENSION_BALANCE_H_
#define PYTHON_EXTENSION_BALANCE_H_

#include <pybind11/pybind11.h>

namespace gpipe::python {

// Adds profile_layers, balance_layers_by_time, balance_layers_by_size, plan_memory and
// plan_training to the extension.
void add_balance(pybind11::module_& m);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_BALANCE_H_
