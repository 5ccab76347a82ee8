#include "python/extension/gil.h"

#include <atomic>

namespace gpipe::python {
namespace {

std::atomic<int64_t> acquisitions{0};

// Whether the interpreter has begun to end. From then on, a thread that asks for the GIL is ended
// in the middle of its C++ functions.
bool ending() { return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0; }

// Keeps the PyThreadState of a thread that Python has not started, until the thread ends.
struct KeptThreadState {
  bool made = false;

  void make() {
    PyGILState_Ensure();
    PyEval_SaveThread();
    made = true;
  }

  ~KeptThreadState() {
    if (!made || ending()) return;
    PyGILState_Ensure();
    // What a layer keeps in a threading.local() may take the GIL when it is dropped. The last
    // release of Python 3.11 would then free the state twice.
    if (PyObject* const locals = PyThreadState_GetDict()) PyDict_Clear(locals);
    PyGILState_Release(PyGILState_LOCKED);
    PyGILState_Release(PyGILState_UNLOCKED);  // the last release frees the state
  }
};

thread_local KeptThreadState kept;

}  // namespace

WithGil::WithGil() {
  if (PyGILState_GetThisThreadState() == nullptr) kept.make();
  if (PyGILState_Check() == 0) ++acquisitions;
  state_ = PyGILState_Ensure();
}

WithGil::~WithGil() { PyGILState_Release(state_); }

int64_t gil_acquisitions() { return acquisitions; }

Held::Held(const pybind11::object& object)
    : object_(object.inc_ref().ptr(), [](PyObject* dropped) {
        if (ending()) return;  // the interpreter ends, and its objects with it
        const WithGil gil;
        Py_DECREF(dropped);
      }) {}

}  // namespace gpipe::python
