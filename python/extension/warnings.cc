// The pipeline's warnings become Python's (warnings.warn). These two functions take the place of
// those that log through glog, which then is not linked: a program of Python has its own log, and
// may have a glog of its own.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "gpipe/internal/graphs/graph_log.h"
#include "gpipe/runtime/warning_log.h"
#include "python/extension/gil.h"
#include "python/extension/python_names.h"

namespace gpipe {
namespace {

// Gives a warning of Python. Even if warnings are errors (-W error), this must not throw, because
// the callers do not expect it.
void warn(const std::string& text) {
  const python::WithGil gil;
  if (PyErr_WarnEx(PyExc_UserWarning, python::in_python(text).c_str(), 2) != 0)
    PyErr_WriteUnraisable(nullptr);
}

}  // namespace

namespace internal {

void log_warning(const std::string& text) {
  if (!text.empty()) warn("GPipe: " + text);
}

void log_without_graphs(int64_t stage, const std::string& reason) {
  warn("GPipe: stage " + std::to_string(stage) + " runs without graphs: " + reason);
}

}  // namespace internal
}  // namespace gpipe
