#include "python/extension/pipeline.h"

#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "gpipe/internal/call/between_runs.h"
#include "gpipe/internal/threads/inside_pipeline.h"
#include "gpipe/schedule/named_schedule.h"
#include "python/extension/calling.h"
#include "python/extension/gil.h"
#include "python/extension/value.h"
#include "python/extension/world.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

GPipeOptions options_of(const PipelineSettings& settings) {
  GPipeOptions options(settings.balance);
  std::vector<c10::Device> devices;
  for (const std::string& device : settings.devices) devices.emplace_back(device);
  options.devices(devices)
      .chunks(settings.chunks)
      .deferred_batch_norm(settings.deferred_batch_norm)
      .shared_inputs(settings.shared_inputs)
      .groups(settings.groups)
      .cpu_threads_per_stage(settings.cpu_threads_per_stage);
  std::vector<Checkpoint> checkpoints;
  for (const std::string& name : settings.checkpoints) checkpoints.push_back(checkpoint_of(name));
  if (checkpoints.size() == 1) {
    options.checkpoint(checkpoints.front());
  } else {
    options.partition_checkpoints(checkpoints);
  }
  if (settings.worker_of_stage || settings.process_of_worker) {
    Placement placement = settings.worker_of_stage
                              ? Placement::of(*settings.worker_of_stage)
                              : Placement::one_each(static_cast<int64_t>(settings.balance.size()));
    if (settings.process_of_worker) placement.processes(*settings.process_of_worker);
    options.placement(placement);
  }
  options.world(settings.world);
  return options;
}

}  // namespace

StepOptions step_options_of(const StepSettings& settings) {
  StepOptions options;
  if (settings.schedule.find('\n') != std::string::npos) {
    options.schedule(Schedule::from_text(settings.schedule));
  } else if (!settings.schedule.empty()) {
    options.schedule(schedule_by_name(settings.schedule));
  }
  if (settings.reduction != "mean" && settings.reduction != "sum") {
    throw py::value_error("reduction is not one of 'mean' or 'sum': '" + settings.reduction + "'");
  }
  options.reduction(settings.reduction == "sum" ? LossReduction::kSum : LossReduction::kMean)
      .keep_outputs(settings.keep_outputs)
      .check_finite(settings.check_finite)
      .loss_scale(settings.loss_scale);
  if (settings.weight.is_none()) return options;
  options.weight([function = Held(settings.weight)](const Tensors& target) {
    return calling([&] { return py::cast<double>(py::float_(function.get()(to_python(target)))); });
  });
  return options;
}

Checkpoint checkpoint_of(const std::string& name) {
  if (name == "always") return Checkpoint::kAlways;
  if (name == "except_last") return Checkpoint::kExceptLast;
  if (name == "never") return Checkpoint::kNever;
  throw py::value_error("checkpoint is not one of 'always', 'except_last', or 'never': '" + name +
                        "'");
}

LossFn loss_of(const py::object& function) {
  return [function = Held(function)](const Tensors& output, const Tensors& target) {
    return calling([&] {
      const py::object given = to_python(output);
      const py::object loss =
          target.empty() ? function.get()(given) : function.get()(given, to_python(target));
      if (!THPVariable_Check(loss.ptr())) {
        throw py::type_error("expected a Tensor from the loss function, but got " +
                             std::string(py::str(py::type::handle_of(loss).attr("__name__"))));
      }
      return at::Tensor(THPVariable_Unpack(loss.ptr()));
    });
  };
}

Pipeline::Pipeline(const std::vector<std::pair<std::string, py::object>>& layers,
                   const PipelineSettings& settings) {
  torch::nn::Sequential model;
  for (const auto& [name, module] : layers) {
    MadeLayer made = make_layer(module);
    layers_.push_back(made.layer);
    model->push_back(name, std::move(made.any));
  }
  const GPipeOptions options = options_of(settings);
  without_gil([&] { pipe_ = GPipe(model, options); });
}

Pipeline::~Pipeline() { clear(); }

int Pipeline::traverse(visitproc visit, void* arg) const {
  for (const std::shared_ptr<Layer>& layer : layers_) {
    const int found = layer->traverse(visit, arg);
    if (found != 0) return found;
  }
  return 0;
}

void Pipeline::clear() {
  // The pipeline is destroyed without the GIL, because it joins its workers, which may need the GIL
  // to drop objects of Python.
  without_gil([&] { pipe_ = GPipe(nullptr); });
  layers_.clear();
}

template <typename Update>
void Pipeline::between_runs(const Update& update) {
  // A layer that calls its own pipeline must not wait here for its own run. The pipeline refuses
  // the call later. Without layers nothing runs.
  if (layers_.empty() || internal::inside_pipeline()) return;
  without_gil([&] {
    const internal::BetweenRuns between(pipe_->pipeline());
    const WithGil gil;
    update();
  });
}

bool Pipeline::update(bool training) {
  between_runs([&] {
    // LibTorch's train() sets the mode of all layers, too. layer->update() then gives each layer
    // the mode of its Python module again.
    if (pipe_->is_training() != training) pipe_->torch::nn::Module::train(training);
    for (const std::shared_ptr<Layer>& layer : layers_) {
      if (layer->update()) layers_changed_ = true;
    }
  });
  return !layers_changed_ || std::none_of(layers_.begin(), layers_.end(), [](const auto& layer) {
    return layer->has_other_skips();
  });
}

void Pipeline::update_known() {
  between_runs([&] {
    for (const std::shared_ptr<Layer>& layer : layers_) layer->update_known();
  });
}

py::object Pipeline::forward(py::handle input) {
  if (layers_.empty()) {
    (void)tensors_of_argument(input, "input");
    return py::reinterpret_borrow<py::object>(input);
  }
  Tensors tensors = prepared(pipe_->world(), [&] { return inputs_of(input); });
  Tensors outputs = without_gil([&] { return pipe_->forward(std::move(tensors)); });
  if (outputs.empty()) return py::none();  // the outputs are in another process
  return to_python(std::move(outputs));
}

Tensors Pipeline::inputs_of(py::handle input) const {
  if (input.is_none() && pipe_->world().size() > 1) return {};  // another process has the input
  return tensors_of_argument(input, "input");
}

Pipeline::Result Pipeline::run(py::handle input, py::handle target, const py::object& loss_fn,
                               const StepSettings& settings, bool backward) {
  Tensors inputs;
  Tensors targets;
  const LossFn loss = loss_of(loss_fn);
  const StepOptions options = prepared(pipe_->world(), [&] {
    inputs = inputs_of(input);
    if (!target.is_none()) targets = tensors_of_argument(target, "target");
    return step_options_of(settings);
  });
  StepResult result = without_gil([&] {
    return backward ? pipe_->step(std::move(inputs), std::move(targets), loss, options)
                    : pipe_->evaluate(std::move(inputs), std::move(targets), loss, options);
  });
  py::object outputs = py::none();
  if (!result.outputs.empty()) outputs = to_python(std::move(result.outputs));
  return {result.loss, std::move(result.losses), std::move(outputs)};
}

Pipeline::Result Pipeline::step(py::handle input, py::handle target, const py::object& loss_fn,
                                const StepSettings& settings) {
  return run(input, target, loss_fn, settings, /*backward=*/true);
}

Pipeline::Result Pipeline::evaluate(py::handle input, py::handle target, const py::object& loss_fn,
                                    const StepSettings& settings) {
  return run(input, target, loss_fn, settings, /*backward=*/false);
}

std::vector<std::string> Pipeline::devices() const {
  std::vector<std::string> devices;
  for (const c10::Device& device : pipe_->devices()) devices.push_back(device.str());
  return devices;
}

bool Pipeline::is_here(int64_t layer) const { return pipe_->is_here(layer); }

std::vector<std::pair<std::string, at::Tensor>> Pipeline::local_named_parameters() {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const auto& parameter : pipe_->local_named_parameters()) {
    named.emplace_back(parameter.key(), parameter.value());
  }
  return named;
}

double Pipeline::clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite) {
  return without_gil(
      [&] { return pipe_->clip_grad_norm_(max_norm, norm_type, error_if_nonfinite); });
}

void Pipeline::materialize(const py::object& init) {
  const Held function(init);  // made and destroyed with the GIL
  without_gil([&] {
    pipe_->materialize(
        [&function](const std::string& name, at::Tensor& tensor, const at::Generator& generator) {
          calling([&] { (void)function.get()(name, py::cast(tensor), py::cast(generator)); });
        });
  });
}

std::string Pipeline::parameter_hash() {
  return without_gil([&] { return pipe_->parameter_hash(); });
}

}  // namespace gpipe::python
