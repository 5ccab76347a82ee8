#include "python/extension/zero_optimizer.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

#include "python/extension/calling.h"
#include "python/extension/gil.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

}  // namespace

Zero::Zero(Pipeline& pipeline, const py::object& make) {
  GPipe& pipe = pipeline.gpipe();
  const Held function(make);
  const auto make_copy = [&](const std::vector<at::Tensor>& parameters) {
    return calling([&] {
      auto [type, groups, step] =
          py::cast<std::tuple<std::string, GivenGroups, py::object>>(function.get()(parameters));
      auto copy = std::make_unique<CopiedOptimizer>(
          std::move(type), groups,
          [own_step = Held(step)] { calling([&] { (void)own_step.get()(); }); });
      copy_ = copy.get();
      return copy;
    });
  };
  // All ranks make it together, and wait for each other.
  optimizer_ = without_gil([&] { return std::make_unique<ZeroOptimizer>(pipe, make_copy); });
}

Zero::~Zero() {
  // The optimizer may be the last that has the pipeline, which is destroyed without the GIL
  // (Pipeline::~Pipeline).
  without_gil([&] { optimizer_.reset(); });
}

void Zero::step(const std::vector<std::optional<double>>& rates) {
  auto& groups = optimizer_->param_groups();
  for (size_t k = 0; k < groups.size(); ++k) {
    py::dict options;
    if (rates.at(k)) options["lr"] = *rates[k];
    groups[k].set_options(kept_options(options));
  }
  without_gil([&] { optimizer_->step(); });
}

void Zero::take(const GivenGroups& groups) {
  for (size_t k = 0; k < groups.size(); ++k) {
    optimizer_->param_groups().at(k).set_options(kept_options(std::get<1>(groups[k])));
  }
  copy_->take_states(groups);
}

void define_zero_optimizer(py::module_& module) {
  py::class_<Zero>(module, "ZeroOptimizer")
      .def(py::init<Pipeline&, const py::object&>())
      .def("step", &Zero::step);
}

}  // namespace gpipe::python
