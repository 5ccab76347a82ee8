// The GIL: where it is released, and where it is taken.
//
// A call from Python releases it in one place, without_gil(), and holds it nowhere else while it
// waits. Workers take it to run Python's code (WithGil) and to drop Python's objects (Held).
#ifndef PYTHON_EXTENSION_GIL_H_
#define PYTHON_EXTENSION_GIL_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace gpipe::python {

// Calls `function` without the GIL and returns its result.
//
// Requirements: the caller holds the GIL; `function` touches no object of Python.
template <typename Function>
auto without_gil(Function&& function) {
  const pybind11::gil_scoped_release released;
  return std::forward<Function>(function)();
}

// Holds the GIL while this object lives. Scopes nest.
//
// A thread that Python has not started gets its PyThreadState at its first scope and keeps it until
// the thread ends. To make one for each call would take longer than small layers do, and layers
// would lose what they keep in threading.local().
class WithGil {
 public:
  WithGil();
  ~WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

// How often a WithGil has taken the GIL in this process. For tests.
int64_t gil_acquisitions();

// An object of Python that any thread may copy and drop.
class Held {
 public:
  Held() = default;
  // Requirements: the caller holds the GIL.
  explicit Held(const pybind11::object& object);

  // Requirements: the caller holds the GIL.
  pybind11::handle get() const { return object_.get(); }

 private:
  std::shared_ptr<PyObject> object_;
};

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_GIL_H_
