// Mirror: a module of Python as a module of LibTorch, with the same parameters and buffers under
// the same names.
#ifndef PYTHON_EXTENSION_MIRROR_H_
#define PYTHON_EXTENSION_MIRROR_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "python/extension/gil.h"
#include "skip/skippable.h"

namespace gpipe::python {

// A Mirror has no forward. Layer (layer.h) is derived from it for top-level modules; other mirrors
// tell the pipeline which modules a layer consists of. Parameters and buffers are the very tensors
// of the Python module.
//
// Requirements: all but the destructor are called with the GIL.
class Mirror : public torch::nn::Module {
 public:
  // Makes a Mirror; with skips if the module has `stashable_names` and `poppable_names`.
  static std::shared_ptr<Mirror> make(const pybind11::object& module);
  // Whether the Python module has skips.
  static bool is_skippable(const pybind11::object& module);

  explicit Mirror(const pybind11::object& module);

  // Takes over what has changed in the Python module since the last update: parameters, buffers and
  // submodules that were added, replaced or removed, and modes. A submodule that is still there
  // keeps its mirror. Returns whether a submodule, at any depth, was added, replaced or removed.
  bool update();
  // Takes over modes, and parameters and buffers that were replaced. What a forward has added waits
  // for the next update().
  void update_known();

  pybind11::handle module() const { return module_.get(); }
  // The mirrors within this one that have skips.
  std::vector<std::shared_ptr<Mirror>> mirrors_with_skips();
  // The mirror of `module`: this one, or one within it. Null if none of them mirrors `module`.
  Mirror* find(pybind11::handle module);

  // Shows the Python modules of this mirror and those within it to Python's garbage collector, as a
  // type's tp_traverse does.
  int traverse(visitproc visit, void* arg) const;

  virtual skip::Skippable* skippable() { return nullptr; }
  // These two functions give access to Skippable's stash() and pop(), which are protected.
  virtual void stash_tensor(const std::string& name, at::Tensor tensor);
  virtual at::Tensor pop_tensor(const std::string& name);

 private:
  void update_tensors(bool all);
  void update_mode();
  bool update_children();

  Held module_;
};

// A mirror or a layer with skips. `Base`: Mirror, or derived from it.
template <typename Base>
class WithSkips : public Base, public skip::Skippable {
 public:
  explicit WithSkips(const pybind11::object& module);

  skip::Skippable* skippable() override { return this; }
  void stash_tensor(const std::string& name, at::Tensor tensor) override {
    stash(name, std::move(tensor));
  }
  at::Tensor pop_tensor(const std::string& name) override { return pop(name); }
};

// The names of a skippable Python module. They are sorted, because Python has them as sets.
std::vector<std::string> skip_names(const pybind11::object& module, const char* attribute);
// Puts the names into the same namespaces as in the Python module.
void isolate_as(const pybind11::object& module, skip::Skippable& skippable);

template <typename Base>
WithSkips<Base>::WithSkips(const pybind11::object& module)
    : Base(module),
      Skippable(skip_names(module, "stashable_names"), skip_names(module, "poppable_names")) {
  isolate_as(module, *this);
}

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_MIRROR_H_
