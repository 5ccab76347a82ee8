#include "python/extension/saving.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <utility>

#include "gpipe/saving/saving.h"
#include "python/extension/copied_optimizer.h"
#include "python/extension/gil.h"
#include "python/extension/pipeline.h"
#include "python/extension/zero_optimizer.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

py::tuple to_tuple(const Progress& progress) {
  return py::make_tuple(progress.step, progress.rows, progress.settings);
}

// `zero`: the optimizer over replicas that the groups are a part of; null without one.
void save(Pipeline& pipeline, const std::string& path, const std::string& type,
          const GivenGroups& groups, int64_t step, int64_t rows, const std::string& settings,
          Zero* zero) {
  Progress progress;
  progress.step = step;
  progress.rows = rows;
  progress.settings = settings;
  GPipe& pipe = pipeline.gpipe();
  const auto write = [&](torch::optim::Optimizer& optimizer) {
    without_gil([&] { save_checkpoint(pipe, optimizer, progress, path); });
  };
  if (zero != nullptr) {
    (void)zero->with_states(groups, write);
  } else {
    CopiedOptimizer optimizer(type, groups);
    write(optimizer);
  }
}

py::tuple load(Pipeline& pipeline, const std::string& path, const std::string& type,
               const GivenGroups& groups, Zero* zero) {
  GPipe& pipe = pipeline.gpipe();
  Progress progress;
  const auto read = [&](torch::optim::Optimizer& optimizer) {
    progress = without_gil([&] { return load_checkpoint(pipe, optimizer, path); });
  };
  if (zero != nullptr) {
    py::list loaded = zero->with_states(groups, read);
    return py::make_tuple(to_tuple(progress), std::move(loaded));
  }
  CopiedOptimizer optimizer(type, groups);
  read(optimizer);
  return py::make_tuple(to_tuple(progress), optimizer.groups());
}

}  // namespace

void define_saving(py::module_& module) {
  module.def("save_checkpoint", &save);
  module.def("load_checkpoint", &load);
  module.def("load_weights", [](Pipeline& pipeline, const std::string& path) {
    GPipe& pipe = pipeline.gpipe();
    return to_tuple(without_gil([&] { return load_weights(pipe, path); }));
  });
  module.def("read_progress", [](const std::string& path) {
    return to_tuple(without_gil([&] { return read_progress(path); }));
  });
  module.def("has_checkpoint", [](const std::string& path) {
    return without_gil([&] { return has_checkpoint(path); });
  });
}

}  // namespace gpipe::python
