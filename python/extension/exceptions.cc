#include "python/extension/exceptions.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/internal/backward/run_node.h"
#include "gpipe/internal/run/failure.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/interruption.h"
#include "python/extension/gil.h"
#include "python/extension/python_names.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

// The notes of an exception, each behind a semicolon. Empty for null.
std::string notes_of(py::handle error) {
  std::string text;
  if (!error) return text;
  const py::object notes = py::getattr(error, "__notes__", py::none());
  if (!py::isinstance<py::list>(notes)) return text;
  for (const py::handle note : notes) {
    if (py::isinstance<py::str>(note)) text += "; " + std::string(py::str(note));
  }
  return text;
}

// Takes over Python's current error.
void take_current(python_error& error) {
  error.persist();
  if (error.type == nullptr) return;
  // The text goes to other processes. Without the type's name, the text of KeyError('x') would be
  // "'x'", and that of Ctrl-C would be empty.
  const std::string type = py::str(py::handle(error.type).attr("__name__"));
  const bool says_more = error.value != nullptr && !error.message.empty();
  error.message = says_more ? type + ": " + error.message : type;
  error.message += notes_of(error.value);
}

[[noreturn]] void throw_current() {
  python_error error;
  take_current(error);
  throw python_error(std::move(error));
}

// Takes an exception away from the thread on which a node has thrown it. What a hook raises may
// still be there: no one has taken it, or autograd's engine has put it back. The next call of
// Python on this thread would fail with it.
void take_from_thread(const std::exception& error) {
  const auto* of_python = dynamic_cast<const python_error*>(&error);
  if (of_python == nullptr) return;
  const WithGil gil;
  if (of_python->type == nullptr) take_current(*const_cast<python_error*>(of_python));
  PyErr_Clear();
}

void add_note(const std::exception& error, const std::string& where) {
  const auto* of_python = dynamic_cast<const python_error*>(&error);
  if (of_python == nullptr || of_python->type == nullptr) return;
  const WithGil gil;
  // If C code has raised the exception, PyErr_Fetch gives its arguments instead of the exception
  // itself.
  auto* changed = const_cast<python_error*>(of_python);
  PyErr_NormalizeException(&changed->type, &changed->value, &changed->traceback);
  try {
    py::handle(changed->value).attr("add_note")("GPipe: " + where);
  } catch (const py::error_already_set&) {  // an exception class of the user may refuse notes
  }
}

// check_signals() for threads that wait within a run.
void check_signals_in_run() {
  // While the process exits, only the exiting thread may ask for the GIL. Python ends other threads
  // that ask for it in the middle of their C++ functions, and the process with them. So workers
  // stay where they are until the process is gone.
  if (internal::exiting() && !internal::on_exiting_thread()) return;
  check_signals();
}

const char* name_of(distributed::FaultKind kind) {
  switch (kind) {
    case distributed::FaultKind::kException:
      return "exception";
    case distributed::FaultKind::kDeath:
      return "death";
    case distributed::FaultKind::kLeft:
      return "left";
    case distributed::FaultKind::kSilence:
      break;
  }
  return "silence";
}

// Sets gpipe.DistributedFailure, with its faults, as the error of Python.
void raise_failure(const distributed::DistributedFailure& failure) {
  const py::module_ module = py::module_::import("gpipe.world");
  py::list faults;
  for (const distributed::Fault& fault : failure.faults()) {
    faults.append(module.attr("Fault")(name_of(fault.kind), fault.rank, fault.host, fault.stage,
                                       fault.micro_batch, fault.layer, in_python(fault.text)));
  }
  const py::object type = module.attr("DistributedFailure");
  PyErr_SetObject(type.ptr(), type(in_python(failure.what()), faults).ptr());
}

// An exception class of torch by its name in torch._C: OutOfMemoryError is torch.OutOfMemoryError,
// _LinAlgError is torch.linalg.LinAlgError.
py::object of_torch(const char* name) { return py::module_::import("torch._C").attr(name); }

void raise(PyObject* type, const c10::Error& error) {
  PyErr_SetString(type, in_python(error.what_without_backtrace()).c_str());
}

void raise(PyObject* type, const std::exception& error) {
  PyErr_SetString(type, in_python(error.what()).c_str());
}

void translate(std::exception_ptr thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (python_error& error) {
    error.restore();
  } catch (const distributed::DistributedFailure& error) {
    raise_failure(error);
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
  } catch (const std::invalid_argument& error) {
    raise(PyExc_ValueError, error);
  } catch (const std::out_of_range& error) {
    raise(PyExc_IndexError, error);
  }
}

// translate() for a backward, whose errors torch's engine would pass on as they are.
void translate_for_engine(const std::exception_ptr& thrown) {
  const WithGil gil;
  translate(thrown);
  throw_current();
}

}  // namespace

void throw_on(py::error_already_set& error) {
  error.restore();
  throw_current();
}

void check_signals() {
  // On the main thread, Python now runs its handlers of signals. On other threads this does
  // nothing.
  const WithGil gil;
  if (PyErr_CheckSignals() != 0) throw_current();
}

void install_exceptions() {
  py::register_local_exception_translator(&translate);
  internal::set_place_adder(&add_note);
  internal::set_thrown_taker(&take_from_thread);
  internal::set_engine_translator(&translate_for_engine);
  internal::set_interruption_check(&check_signals_in_run);
}

}  // namespace gpipe::python
