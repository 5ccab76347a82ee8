// Zero: a gpipe::ZeroOptimizer whose optimizers are Python's.
#ifndef PYTHON_EXTENSION_ZERO_OPTIMIZER_H_
#define PYTHON_EXTENSION_ZERO_OPTIMIZER_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "gpipe/zero_optimizer.h"
#include "python/extension/copied_optimizer.h"
#include "python/extension/pipeline.h"

namespace gpipe::python {

// Requirements: all functions are called with the GIL. Functions that take time release it.
class Zero {
 public:
  // `make`: called with this replica's own parameters, a list; gives the optimizer's class as a
  // text, its groups (GivenGroups), and a function that makes its step. Throws what ZeroOptimizer
  // and `make` throw.
  Zero(Pipeline& pipeline, const pybind11::object& make);
  ~Zero();
  Zero(const Zero&) = delete;
  Zero& operator=(const Zero&) = delete;

  // `rates`: the learning rate of each group, as it is now. Throws as ZeroOptimizer::step().
  void step(const std::vector<std::optional<double>>& rates);

  // Calls `use` with the optimizer, whose options and states are those of `groups` meanwhile.
  // Returns them as they are then, as CopiedOptimizer::groups().
  template <typename Use>
  pybind11::list with_states(const GivenGroups& groups, const Use& use) {
    take(groups);
    const Drops drops{*copy_};
    use(*optimizer_);
    return copy_->groups();
  }

 private:
  // Python's optimizer replaces its states when it loads some, so copies would only take memory.
  struct Drops {
    CopiedOptimizer& copy;
    ~Drops() { copy.drop_states(); }
  };
  void take(const GivenGroups& groups);

  CopiedOptimizer* copy_ = nullptr;  // owned by optimizer_
  std::unique_ptr<ZeroOptimizer> optimizer_;
};

// Adds ZeroOptimizer to the extension module. python/gpipe/zero_optimizer.py has its texts.
void define_zero_optimizer(pybind11::module_& module);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_ZERO_OPTIMIZER_H_
