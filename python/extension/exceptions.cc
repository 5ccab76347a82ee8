#include "python/extension/exceptions.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <exception>
#include <string>
#include <utility>

#include "gpipe/internal/run/failure.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/interruption.h"
#include "python/extension/gil.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

[[noreturn]] void throw_current() {
  python_error error;
  error.persist();
  throw python_error(std::move(error));
}

// Without the C++ type of the layer, which is ours: the traceback shows the user's type.
std::string without_our_type(const std::string& where) {
  return where.substr(0, where.find(", a gpipe::python::"));
}

void add_note(const std::exception& error, const std::string& where) {
  const auto* of_python = dynamic_cast<const python_error*>(&error);
  if (of_python == nullptr || of_python->value == nullptr) return;
  const WithGil gil;
  // PyErr_Fetch gives the arguments instead of the exception if C code has raised it.
  auto* changed = const_cast<python_error*>(of_python);
  PyErr_NormalizeException(&changed->type, &changed->value, &changed->traceback);
  try {
    py::handle(changed->value).attr("add_note")("GPipe: " + without_our_type(where));
  } catch (const py::error_already_set&) {  // a class of the user's may refuse notes
  }
}

void check_signals() {
  // The workers stay where they are until the process is gone. A thread that asks for the GIL while
  // the interpreter ends is ended in the middle of its C++ functions, and the process with it.
  if (internal::exiting() && !internal::on_exiting_thread()) return;
  // On the main thread Python runs its handlers of signals here, elsewhere nothing.
  const WithGil gil;
  if (PyErr_CheckSignals() != 0) throw_current();
}

// An exception class of torch by its name in torch._C: OutOfMemoryError is torch.OutOfMemoryError,
// _LinAlgError is torch.linalg.LinAlgError.
py::object of_torch(const char* name) { return py::module_::import("torch._C").attr(name); }

template <typename Error>
void raise(PyObject* type, const Error& error) {
  PyErr_SetString(type, error.what_without_backtrace());
}

void translate(std::exception_ptr thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (python_error& error) {
    error.restore();
  } catch (const c10::OutOfMemoryError& error) {
    raise(of_torch("OutOfMemoryError").ptr(), error);
  } catch (const c10::LinAlgError& error) {
    raise(of_torch("_LinAlgError").ptr(), error);
  } catch (const c10::IndexError& error) {
    raise(PyExc_IndexError, error);
  } catch (const c10::ValueError& error) {
    raise(PyExc_ValueError, error);
  } catch (const c10::TypeError& error) {
    raise(PyExc_TypeError, error);
  } catch (const c10::NotImplementedError& error) {
    raise(PyExc_NotImplementedError, error);
  } catch (const c10::Error& error) {
    raise(PyExc_RuntimeError, error);
  }
}

}  // namespace

void throw_on(py::error_already_set& error) {
  error.restore();
  throw_current();
}

void install_exceptions() {
  py::register_local_exception_translator(&translate);
  internal::set_place_adder(&add_note);
  internal::set_interruption_check(&check_signals);
}

}  // namespace gpipe::python
