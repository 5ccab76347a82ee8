// define_world: the processes of a run (gpipe/world.h), for Python.
#ifndef PYTHON_EXTENSION_WORLD_H_
#define PYTHON_EXTENSION_WORLD_H_

#include <pybind11/pybind11.h>

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

// Adds World, any_rank and from_rank_0 to the extension module. python/gpipe/world.py has their
// texts.
void define_world(pybind11::module_& module);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_WORLD_H_
