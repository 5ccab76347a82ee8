// The extension module gpipe._gpipe. What users call, with its texts, is in Python: python/gpipe.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/internal/backward/walk_number.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/schedule/named_schedule.h"
#include "python/extension/balance.h"
#include "python/extension/diagnose.h"
#include "python/extension/exceptions.h"
#include "python/extension/gil.h"
#include "python/extension/grad_scaler.h"
#include "python/extension/layer.h"
#include "python/extension/pipeline.h"
#include "python/extension/saving.h"
#include "python/extension/schedule.h"
#include "python/extension/world.h"
#include "python/extension/zero_optimizer.h"

namespace {

namespace py = pybind11;
using gpipe::python::Pipeline;
using gpipe::python::PipelineSettings;
using gpipe::python::StepSettings;

// At exit, layers that run get this time to finish before the interpreter ends.
constexpr std::chrono::seconds kExitPatience{10};

// Python reads this text in the file before it loads it: with another torch, loading would fail or
// crash.
constexpr char kBuiltFor[] = "gpipe-built-for-torch " TORCH_VERSION "\n";

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const gpipe::NamedSchedule& schedule : gpipe::named_schedules()) {
    names.push_back(schedule.name);
  }
  return names;
}

// Where the next draw of the layer that runs on this thread belongs. If `place` is given, it then
// belongs there. nullopt outside of layers and their backwards.
using DrawPlace = std::tuple<uint64_t, int64_t, int64_t>;
std::optional<DrawPlace> draw_place(const std::optional<DrawPlace>& place) {
  gpipe::internal::RandomStreams* const draws = gpipe::internal::RandomStreams::current();
  if (draws == nullptr) return std::nullopt;
  const auto [seed, layer, number] = draws->place();
  if (place) {
    const auto& [seed_then, layer_then, number_then] = *place;
    draws->enter({seed_then, layer_then, number_then});
  }
  return DrawPlace(seed, layer, number);
}

Pipeline& pipeline_of(PyObject* object) { return py::cast<Pipeline&>(py::handle(object)); }

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  // While __init__ runs, there is an object without a Pipeline.
  if (!py::detail::is_holder_constructed(self)) return 0;
  return pipeline_of(self).traverse(visit, arg);
}

int clear(PyObject* self) {
  // While the interpreter ends, workers may wait until the process is gone.
  if (py::detail::is_holder_constructed(self) && _Py_IsFinalizing() == 0) pipeline_of(self).clear();
  return 0;
}

void collect_as_garbage(PyHeapTypeObject* type) {
  type->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->ht_type.tp_traverse = &traverse;
  type->ht_type.tp_clear = &clear;
}

}  // namespace

PYBIND11_MODULE(_gpipe, m) {
  gpipe::python::install_exceptions();
  gpipe::python::add_balance(m);
  gpipe::python::add_schedule(m);

  m.attr("built_for") = kBuiltFor;
  m.def("schedule_names", &schedule_names);
  m.def("is_checkpointing", &gpipe::is_checkpointing);
  m.def("is_recomputing", &gpipe::is_recomputing);
  m.def("walk_number", &gpipe::internal::walk_number);
  m.def("draw_place", &draw_place, py::arg("place") = std::nullopt);
  m.def("gil_acquisitions", &gpipe::python::gil_acquisitions);
  // After this call, workers wait at their next action until the process is gone.
  m.def("shut_at_exit",
        [] { gpipe::python::without_gil([] { gpipe::internal::shut_exit_gate(kExitPatience); }); });

  m.def("in_layer", &gpipe::python::in_layer);
  m.def("stash", &gpipe::python::stash);
  m.def("pop", &gpipe::python::pop);

  gpipe::python::define_world(m);

  py::class_<PipelineSettings>(m, "PipelineSettings")
      .def(py::init<>())
      .def_readwrite("balance", &PipelineSettings::balance)
      .def_readwrite("devices", &PipelineSettings::devices)
      .def_readwrite("chunks", &PipelineSettings::chunks)
      .def_readwrite("checkpoints", &PipelineSettings::checkpoints)
      .def_readwrite("deferred_batch_norm", &PipelineSettings::deferred_batch_norm)
      .def_readwrite("shared_inputs", &PipelineSettings::shared_inputs)
      .def_readwrite("worker_of_stage", &PipelineSettings::worker_of_stage)
      .def_readwrite("process_of_worker", &PipelineSettings::process_of_worker)
      .def("set_world", [](PipelineSettings& self,
                           const gpipe::python::HeldWorld& given) { self.world = given.world; })
      .def_readwrite("groups", &PipelineSettings::groups)
      .def_readwrite("cpu_threads_per_stage", &PipelineSettings::cpu_threads_per_stage);

  py::class_<StepSettings>(m, "StepSettings")
      .def(py::init<std::string, std::string, py::object, bool, bool, double>(),
           py::arg("schedule"), py::arg("reduction"), py::arg("weight"), py::arg("keep_outputs"),
           py::arg("check_finite"), py::arg("loss_scale") = 1.0);

  py::class_<Pipeline::Result>(m, "Result")
      .def_readonly("loss", &Pipeline::Result::loss)
      .def_readonly("losses", &Pipeline::Result::losses)
      .def_readonly("outputs", &Pipeline::Result::outputs);

  py::class_<Pipeline>(m, "Pipeline", py::custom_type_setup(&collect_as_garbage))
      .def(py::init<const std::vector<std::pair<std::string, py::object>>&,
                    const PipelineSettings&>())
      .def("update", &Pipeline::update)
      .def("update_known", &Pipeline::update_known)
      .def("forward", &Pipeline::forward)
      .def("step", &Pipeline::step)
      .def("evaluate", &Pipeline::evaluate)
      .def("devices", &Pipeline::devices)
      .def("is_here", &Pipeline::is_here)
      .def("local_named_parameters", &Pipeline::local_named_parameters)
      .def("clip_grad_norm", &Pipeline::clip_grad_norm)
      .def("parameter_hash", &Pipeline::parameter_hash)
      .def("materialize", &Pipeline::materialize);

  gpipe::python::define_zero_optimizer(m);
  gpipe::python::define_grad_scaler(m);
  gpipe::python::define_saving(m);
  gpipe::python::define_diagnose(m);
}
