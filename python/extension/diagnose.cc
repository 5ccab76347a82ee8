#include "python/extension/diagnose.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/diagnose.h"
#include "diagnose/diagnosis_text.h"
#include "gpipe/pipeline_setup.h"
#include "python/extension/calling.h"
#include "python/extension/exceptions.h"
#include "python/extension/gil.h"
#include "python/extension/pipeline.h"
#include "python/extension/value.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

// The text for people, and the JSON.
py::tuple diagnose_pipeline(Pipeline& pipeline, py::handle input, py::handle target,
                            const py::object& loss_fn, const StepSettings& step, double seconds,
                            const std::vector<int64_t>& chunks,
                            const std::vector<std::string>& schedules,
                            const std::vector<std::pair<int64_t, int64_t>>& keep_together,
                            int64_t memory_limit, double param_scale, int64_t cores,
                            bool run_plain_model, const py::object& progress) {
  const Tensors inputs = tensors_of_argument(input, "input");
  Tensors targets;
  if (!target.is_none()) targets = tensors_of_argument(target, "target");
  const LossFn loss = loss_of(loss_fn);
  DiagnoseOptions options;
  options.step(step_options_of(step))
      .seconds(seconds)
      .chunks(chunks)
      .memory_limit(memory_limit)
      .param_scale(param_scale)
      .cpu_cores(cores)
      .run_plain_model(run_plain_model)
      .check(check_signals);
  for (const std::string& name : schedules) {
    options.schedules().push_back(choice_by_name(name, name));
  }
  for (const auto& [first, last] : keep_together) options.keep_together().push_back({first, last});
  if (!progress.is_none()) {
    options.progress(
        [function = Held(progress)](const std::string& what, int64_t done, int64_t all) {
          calling([&] { (void)function.get()(what, done, all); });
        });
  }
  GPipe& pipe = pipeline.gpipe();
  const Diagnosis diagnosis =
      without_gil([&] { return diagnose(pipe, inputs, targets, loss, options); });
  return py::make_tuple(to_text(diagnosis), to_json(diagnosis));
}

}  // namespace

void define_diagnose(py::module_& module) { module.def("diagnose", &diagnose_pipeline); }

}  // namespace gpipe::python
