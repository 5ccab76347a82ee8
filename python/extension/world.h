// define_world: the processes of a run (gpipe/world.h), for Python.
#ifndef PYTHON_EXTENSION_WORLD_H_
#define PYTHON_EXTENSION_WORLD_H_

#include <pybind11/pybind11.h>

#include <exception>
#include <utility>

#include "gpipe/world.h"

namespace gpipe::python {

// A World for an object of Python. It is destroyed without the GIL, because the last copy of a
// World leaves the run and waits for threads.
struct HeldWorld {
  explicit HeldWorld(World given) : world(std::move(given)) {}
  // Requirements: the caller holds the GIL.
  ~HeldWorld();
  HeldWorld(const HeldWorld&) = delete;
  HeldWorld& operator=(const HeldWorld&) = delete;

  World world;
};

// Fails the next call of all processes, because `error` has kept it from beginning here. The others
// throw a DistributedFailure that has its text. Does nothing for one process.
//
// Requirements: the caller holds the GIL, and throws `error` itself.
void fail_call(const World& world, const std::exception_ptr& error);

// Returns the result of `prepare`, the arguments of a call of all processes. If it throws, the call
// fails on all.
template <typename Prepare>
auto prepared(const World& world, const Prepare& prepare) {
  try {
    return prepare();
  } catch (...) {
    fail_call(world, std::current_exception());
    throw;
  }
}

// Adds World, any_rank and from_rank_0 to the extension module. python/gpipe/world.py has their
// texts.
void define_world(pybind11::module_& module);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_WORLD_H_
