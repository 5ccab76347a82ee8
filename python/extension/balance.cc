#include "python/extension/balance.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "balance/balance.h"
#include "balance/fit.h"
#include "balance/memory_plan.h"
#include "balance/memory_plan_text.h"
#include "balance/plan.h"
#include "balance/profile_file.h"
#include "balance/profiler.h"
#include "balance/training.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/schedule.h"
#include "python/extension/exceptions.h"
#include "python/extension/gil.h"
#include "python/extension/layer.h"
#include "python/extension/pipeline.h"
#include "python/extension/value.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;
using balance::MakeOptimizer;

// The layers of a Sequential: their names and their Python modules.
using Layers = std::vector<std::pair<std::string, py::object>>;

torch::nn::Sequential sequential_of(const Layers& layers) {
  torch::nn::Sequential model;
  for (const auto& [name, module] : layers) {
    model->push_back(name, make_layer(module).any);
  }
  return model;
}

// Calls `function` with a model of these layers, without the GIL. The model is also destroyed
// without the GIL, because its layers take the GIL for that.
template <typename Function>
auto with_model(const Layers& layers, const Function& function) {
  torch::nn::Sequential model = sequential_of(layers);
  return without_gil([&] {
    const auto moved = std::move(model);
    return function(moved);
  });
}

void look_for_ctrl_c() {
  const WithGil gil;
  if (PyErr_CheckSignals() == 0) return;
  py::error_already_set error;
  throw_on(error);
}

MakeOptimizer optimizer_of(const std::string& name) {
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  if (name.empty()) return nullptr;
  if (name == "sgd" || name == "momentum") {
    const double momentum = name == "sgd" ? 0.0 : 0.9;
    return [momentum](std::vector<at::Tensor> parameters) {
      return std::make_unique<SGD>(std::move(parameters), SGDOptions(0.1).momentum(momentum));
    };
  }
  if (name == "adam") {
    return [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::Adam>(std::move(parameters));
    };
  }
  throw py::value_error("optimizer is not one of 'sgd', 'momentum' or 'adam' (AdamW has its " +
                        std::string("memory): '") + name + "'");
}

// `schedule`: a name, or the text of a Schedule, which has several lines.
ScheduleGenerator schedule_of(const std::string& schedule) {
  if (schedule.find('\n') == std::string::npos) return schedule_by_name(schedule);
  return [table = Schedule::from_text(schedule)](int64_t, int64_t) { return table; };
}

// The target and the loss function that a plan computes the loss with.
struct Loss {
  explicit Loss(const py::object& target, const py::object& loss_fn) {
    if (!target.is_none()) targets = tensors_of_argument(target, "target");
    function = loss_fn.is_none() ? LossFn(balance::sum_of_first_output) : loss_of(loss_fn);
  }
  Tensors targets;
  LossFn function;
};

std::string profile(const Layers& layers, py::handle sample, const std::string& name, int64_t rows,
                    double timeout, bool split, int64_t cpu_threads,
                    const std::vector<int64_t>& shared_inputs, bool deferred_batch_norm) {
  const Tensors inputs = tensors_of_argument(sample, "sample");
  auto options = balance::ProfileOptions()
                     .micro_batch_rows(rows)
                     .timeout(timeout)
                     .split(split)
                     .cpu_threads(cpu_threads)
                     .shared_inputs(shared_inputs)
                     .deferred_batch_norm(deferred_batch_norm)
                     .after_each_layer(look_for_ctrl_c);
  return with_model(layers, [&](const torch::nn::Sequential& model) {
    return to_json(balance::SavedProfile{name, balance::profile(model, inputs, options)});
  });
}

std::vector<int64_t> by_time(int64_t partitions, const Layers& layers, py::handle sample,
                             double timeout, int64_t cpu_threads, bool recompute,
                             const std::vector<double>& slowness,
                             const std::vector<int64_t>& shared_inputs) {
  const Tensors inputs = tensors_of_argument(sample, "sample");
  const auto options = balance::TimeOptions()
                           .timeout(timeout)
                           .cpu_threads(cpu_threads)
                           .recompute(recompute)
                           .slowness(slowness)
                           .shared_inputs(shared_inputs)
                           .progress([](const balance::TimeProgress&) { look_for_ctrl_c(); });
  return with_model(layers, [&](const torch::nn::Sequential& model) {
    return balance::balance_by_time(partitions, model, inputs, options);
  });
}

std::vector<int64_t> by_size(int64_t partitions, const Layers& layers, py::handle sample,
                             int64_t chunks, double param_scale,
                             const std::vector<int64_t>& shared_inputs) {
  const Tensors inputs = tensors_of_argument(sample, "sample");
  const auto options =
      balance::SizeOptions().chunks(chunks).param_scale(param_scale).shared_inputs(shared_inputs);
  return with_model(layers, [&](const torch::nn::Sequential& model) {
    return balance::balance_by_size(partitions, model, inputs, options);
  });
}

// The text of the plan, and the bytes of each device.
py::tuple to_tuple(const balance::MemoryPlan& plan) {
  py::list devices;
  for (const balance::DeviceMemory& device : plan.devices) {
    devices.append(py::make_tuple(device.parameters, device.gradients, device.optimizer_state,
                                  device.buffers, device.peak.bytes, device.reserved));
  }
  return py::make_tuple(balance::to_text(plan), devices);
}

py::tuple plan_memory(const Layers& layers, py::handle input, const py::object& target,
                      const py::object& loss_fn, const std::vector<int64_t>& partitions,
                      int64_t chunks, const std::vector<std::string>& checkpoints,
                      const std::string& schedule, const std::string& optimizer, bool cuda,
                      const std::vector<int64_t>& shared_inputs, bool deferred_batch_norm) {
  const Tensors inputs = tensors_of_argument(input, "input");
  const Loss loss(target, loss_fn);
  auto options = balance::MemoryPlanOptions(partitions)
                     .chunks(chunks)
                     .optimizer(optimizer_of(optimizer))
                     .device_type(cuda ? c10::kCUDA : c10::kCPU)
                     .shared_inputs(shared_inputs)
                     .deferred_batch_norm(deferred_batch_norm)
                     .progress([](int64_t, int64_t) { look_for_ctrl_c(); });
  std::vector<Checkpoint> modes;
  for (const std::string& mode : checkpoints) modes.push_back(checkpoint_of(mode));
  if (modes.size() == 1) {
    options.checkpoint(modes.front());
  } else {
    options.partition_checkpoints(modes);
  }
  if (!schedule.empty()) options.schedule(schedule_of(schedule));
  const balance::MemoryPlan plan = with_model(layers, [&](const torch::nn::Sequential& model) {
    return balance::memory_plan(model, inputs, loss.targets, loss.function, options);
  });
  return to_tuple(plan);
}

py::tuple fit(const Layers& layers, py::handle input, const py::object& target,
              const py::object& loss_fn, const std::vector<int64_t>& memory,
              const std::vector<int64_t>& chunks, const std::vector<std::string>& checkpoints,
              const std::string& schedule, const std::string& optimizer, int64_t margin,
              bool deferred_batch_norm, const std::vector<int64_t>& shared_inputs) {
  const Loss loss(target, loss_fn);
  balance::Training training;
  training.inputs = tensors_of_argument(input, "input");
  training.targets = loss.targets;
  training.loss = loss.function;
  training.shared_inputs = shared_inputs;
  auto options = balance::FitOptions()
                     .optimizer(optimizer_of(optimizer))
                     .deferred_batch_norm(deferred_batch_norm)
                     .margin(margin)
                     .chunks(chunks)
                     .progress([](const std::string&) { look_for_ctrl_c(); });
  if (!schedule.empty()) options.schedule(schedule_of(schedule));
  for (const std::string& mode : checkpoints) {
    options.checkpoints().push_back(checkpoint_of(mode));
  }
  const balance::Fit found = with_model(layers, [&](const torch::nn::Sequential& model) {
    training.make = [&model] { return model; };
    return balance::fit(training, memory, options);
  });
  return py::make_tuple(found.fits, found.balance, found.chunks,
                        std::string(to_text(found.checkpoint)), found.step, to_tuple(found.plan),
                        found.room, found.needed, found.limit);
}

py::tuple plan_training(const Layers& layers, py::handle sample, int64_t devices, int64_t memory,
                        const std::vector<int64_t>& chunks,
                        const std::vector<std::string>& checkpoints,
                        const std::vector<std::string>& schedules,
                        const std::vector<std::string>& profiles, double timeout,
                        int64_t cpu_threads, int64_t cores, const std::string& optimizer, bool cuda,
                        const std::vector<int64_t>& shared_inputs, bool deferred_batch_norm) {
  const Tensors inputs = tensors_of_argument(sample, "sample");
  balance::PlanOptions options(devices);
  options.memory(memory)
      .chunks(chunks)
      .schedules(schedules)
      .timeout(timeout)
      .cpu_threads(cpu_threads)
      .optimizer(optimizer_of(optimizer))
      .device_type(cuda ? c10::kCUDA : c10::kCPU)
      .shared_inputs(shared_inputs)
      .deferred_batch_norm(deferred_batch_norm)
      .progress([](const std::string&) { look_for_ctrl_c(); });
  for (const std::string& mode : checkpoints) {
    options.checkpoints().push_back(checkpoint_of(mode));
  }
  for (const std::string& text : profiles) {
    options.profiles().push_back(balance::profile_from_json(text, "the profile").profile);
  }
  options.machine().cores = cores;
  const balance::PlanReport report = with_model(layers, [&](const torch::nn::Sequential& model) {
    return balance::plan(model, inputs, options);
  });
  return py::make_tuple(balance::to_text(report), balance::to_json(report),
                        balance::plan_to_json(report.plan), report.proof.problems,
                        report.proof.not_checked);
}

}  // namespace

void add_balance(py::module_& m) {
  m.def("profile_layers", &profile);
  m.def("balance_layers_by_time", &by_time);
  m.def("balance_layers_by_size", &by_size);
  m.def("plan_memory", &plan_memory);
  m.def("fit", &fit);
  m.def("plan_training", &plan_training);
}

}  // namespace gpipe::python
