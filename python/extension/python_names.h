// in_python: the texts of the C++ library in Python's words.
#ifndef PYTHON_EXTENSION_PYTHON_NAMES_H_
#define PYTHON_EXTENSION_PYTHON_NAMES_H_

#include <string>

namespace gpipe::python {

// The text of an error or a warning of the C++ library, with Python's names for what a user can
// give or call: "Checkpoint::kNever" is checkpoint='never', "GPipeOptions::groups" is groups=.
// Advice that cannot be followed in Python is replaced by advice that can.
std::string in_python(std::string text);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_PYTHON_NAMES_H_
