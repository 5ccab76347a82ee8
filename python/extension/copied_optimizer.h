// CopiedOptimizer: an optimizer of Python as an optimizer of LibTorch.
#ifndef PYTHON_EXTENSION_COPIED_OPTIMIZER_H_
#define PYTHON_EXTENSION_COPIED_OPTIMIZER_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/optim/saved_as.h"

namespace gpipe::python {

// The groups of a Python optimizer: of each, the parameters, the options, and the states of each
// parameter, a dict, or None where it has no state.
using GivenGroups =
    std::vector<std::tuple<std::vector<at::Tensor>, pybind11::dict, pybind11::list>>;

// The options of a group, for torch::optim::OptimizerParamGroup::set_options(). Throws
// c10::NotImplementedError for a value that no checkpoint can hold.
std::unique_ptr<torch::optim::OptimizerOptions> kept_options(const pybind11::dict& options);

// Copies of the states and options of a Python optimizer, which a checkpoint can save and load.
//
// Requirements: all functions but step() and those of archives are called with the GIL.
class CopiedOptimizer final : public torch::optim::Optimizer, public SavedAsOther {
 public:
  // `type`: the name of the Python class. `step`: called by step(), in which the copies stay as
  // they are. Throws as kept_options().
  CopiedOptimizer(std::string type, const GivenGroups& groups,
                  std::function<void()> step = nullptr);

  // Takes the states of the same groups as they are now. Throws as kept_options().
  void take_states(const GivenGroups& groups);
  void drop_states() { state_.clear(); }
  // The groups as Python has them: [(options, [the states of each parameter, or None])].
  pybind11::list groups() const;

  std::string saved_type() const override { return type_; }
  bool takes_other_options() const override { return true; }
  torch::Tensor step(LossClosure closure) override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::string type_;
  std::function<void()> step_;
};

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_COPIED_OPTIMIZER_H_
