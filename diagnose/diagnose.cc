#include "diagnose/diagnose.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "balance/model_guard.h"
#include "balance/profiler.h"
#include "diagnose/advice.h"
#include "diagnose/breakdown.h"
#include "diagnose/costs.h"
#include "diagnose/measure.h"
#include "diagnose/step_model.h"
#include "gpipe/internal/layer_runs.h"
#include "gpipe/internal/mini_batch.h"

namespace gpipe {
namespace {

using balance::Profile;
using diagnosis::Costs;

// By default there is no need for more micro-batches than this for each partition.
constexpr int64_t kMostChunksPerPartition = 8;

void check(const GPipe& pipe, const Tensors& inputs, const LossFn& loss_fn,
           const DiagnoseOptions& options) {
  TORCH_CHECK_VALUE(!pipe.is_empty(), "diagnose was given an empty module holder; give a pipeline");
  TORCH_CHECK_VALUE(pipe->size() > 0, "diagnose needs a model with at least one layer");
  TORCH_CHECK_VALUE(loss_fn != nullptr, "diagnose was given an empty loss function");
  TORCH_CHECK_VALUE(!inputs.empty(), "diagnose was given no input tensor");
  TORCH_CHECK_VALUE(internal::batch_size(inputs, "input") > 0,
                    "the mini-batch has 0 rows, so there is nothing to diagnose");
  for (const c10::Device& device : pipe->devices()) {
    TORCH_CHECK_VALUE(!device.is_meta(),
                      "the pipeline is on the meta device, where nothing is computed, so steps "
                      "have no times; diagnose it on another device");
  }
  TORCH_CHECK_VALUE(
      c10::GradMode::is_enabled(),
      "diagnose runs training steps, but gradients are switched off (torch::NoGradGuard, or "
      "inference mode); call it outside");
  TORCH_CHECK_VALUE(std::isfinite(options.seconds()) && options.seconds() > 0,
                    "seconds must be a finite number above 0, got ", options.seconds());
  for (const int64_t chunks : options.chunks()) {
    TORCH_CHECK_VALUE(chunks >= 1, "chunks to choose from must be at least 1, got ", chunks);
  }
  for (const NamedSchedule& schedule : options.schedules()) {
    TORCH_CHECK_VALUE(schedule.make != nullptr, "the schedule '", schedule.name,
                      "' to choose from is empty; give a generator");
  }
  TORCH_CHECK_VALUE(options.memory_limit() >= 0,
                    "memory_limit must be 0 (none) or a number of bytes, got ",
                    options.memory_limit());
  TORCH_CHECK_VALUE(std::isfinite(options.param_scale()) && options.param_scale() >= 0,
                    "param_scale must be a finite number of at least 0, got ",
                    options.param_scale());
  TORCH_CHECK_VALUE(options.cpu_cores() >= 0,
                    "cpu_cores must be 0 (those of this machine) or more, got ",
                    options.cpu_cores());
}

std::vector<NamedSchedule> schedules_of(const DiagnoseOptions& options) {
  if (!options.schedules().empty()) return options.schedules();
  return {{"1f1b", Schedule::one_f_one_b}, {"gpipe", Schedule::gpipe}};
}

// The schedule that steps have now, under the name of an equal one.
NamedSchedule schedule_now(const DiagnoseOptions& options, int64_t partitions,
                           int64_t micro_batches) {
  const StepOptions step = options.step();
  const auto make = [step](int64_t stages, int64_t count) {
    return step.schedule_for(stages, count);
  };
  const Schedule now = make(partitions, micro_batches);
  for (const NamedSchedule& known : schedules_of(options)) {
    try {
      if (known.make(partitions, micro_batches) == now) return {known.name, make};
    } catch (const std::invalid_argument&) {  // not for this number
    }
  }
  return {"as given", make};
}

// The numbers of micro-batches to choose from: [number] the rows of each.
std::vector<int64_t> chunks_of(const GPipe& pipe, int64_t rows, const DiagnoseOptions& options) {
  std::set<int64_t> result;
  for (const int64_t chunks : options.chunks()) result.insert(std::min(chunks, rows));
  if (options.chunks().empty()) {
    const auto partitions = static_cast<int64_t>(pipe->balance().size());
    const int64_t most = std::min(rows, kMostChunksPerPartition * partitions);
    for (int64_t chunks = 1; chunks <= most; chunks *= 2) result.insert(chunks);
  }
  return {result.begin(), result.end()};
}

Tensors moved(const Tensors& tensors, c10::Device device) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach().to(device) : tensor);
  }
  return result;
}

// Puts everything back: the model, and the generators of all devices.
class Guards {
 public:
  explicit Guards(GPipe pipe) : model_(*pipe, pipe->devices().front()) {
    for (const c10::Device& device : pipe->devices()) {
      if (device.is_cuda() && device != pipe->devices().front()) draws_.emplace_back(none_, device);
    }
  }

 private:
  struct Nothing : torch::nn::Module {};
  Nothing none_;
  balance::ModelGuard model_;
  std::deque<balance::ModelGuard> draws_;
};

// Runs the measurements one after another and tells of them.
class Measurements {
 public:
  Measurements(GPipe pipe, const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
               const DiagnoseOptions& options)
      : pipe_(std::move(pipe)),
        model_(pipe_->sequential()),
        device_(pipe_->devices().front()),
        inputs_(inputs),
        targets_(targets),
        loss_fn_(loss_fn),
        options_(options),
        rows_(internal::batch_size(inputs, "input")) {}

  // What runs, for the progress.
  void begin(int64_t all) { all_ = all; }

  diagnosis::StepTimes steps() {
    tell("the pipeline");
    return diagnosis::measure_steps(pipe_, inputs_, targets_, loss_fn_, options_.step(),
                                    options_.seconds());
  }

  // The model in one stage on the first device, where it stays from now on.
  double one_stage(int64_t chunks, const ScheduleGenerator& schedule, const std::string& what) {
    tell(what);
    const GPipe single = one_stage_pipe(chunks);
    StepOptions step = options_.step();
    step.schedule(schedule);
    return diagnosis::measure_steps(single, inputs_, moved(targets_, device_), loss_fn_, step,
                                    options_.seconds())
        .step;
  }

  // Of micro-batches of `rows` rows.
  diagnosis::LossTimes loss(int64_t chunks) {
    GPipe single = one_stage_pipe(chunks);
    const Tensors targets = moved(targets_, device_);
    Tensors outputs;
    {
      const c10::NoGradGuard no_grad;
      outputs = single->forward(inputs_);
    }
    const internal::MiniBatch cut(rows_, chunks);
    return diagnosis::measure_loss(cut.cut(outputs, 0), cut.cut(targets, 0), loss_fn_);
  }

  Profile layers(int64_t rows) {
    tell("layers, " + std::to_string(rows) + (rows == 1 ? " row" : " rows"));
    return balance::profile(model_, inputs_,
                            balance::ProfileOptions()
                                .micro_batch_rows(rows)
                                .timeout(options_.seconds())
                                .cpu_threads(pipe_->cpu_threads_per_stage())
                                .keep_together(options_.keep_together()));
  }

  const torch::nn::Sequential& model() const { return model_; }

 private:
  GPipe one_stage_pipe(int64_t chunks) const {
    return GPipe(model_, GPipeOptions({static_cast<int64_t>(model_->size())})
                             .devices({device_})
                             .chunks(chunks)
                             .checkpoint(Checkpoint::kNever)
                             .cpu_threads_per_stage(pipe_->cpu_threads_per_stage()));
  }

  void tell(const std::string& what) {
    if (options_.progress()) options_.progress()(what, done_, all_);
    ++done_;
  }

  const GPipe pipe_;
  torch::nn::Sequential model_;
  c10::Device device_;
  const Tensors& inputs_;
  const Tensors& targets_;
  const LossFn& loss_fn_;
  const DiagnoseOptions& options_;
  int64_t rows_;
  int64_t done_ = 0;
  int64_t all_ = 0;
};

// Layers that the profile has measured together, and those that were asked for.
std::vector<balance::LayerRange> together(const torch::nn::Sequential& model,
                                          const DiagnoseOptions& options) {
  std::vector<balance::LayerRange> result = options.keep_together();
  int64_t first = 0;
  for (const int64_t layers : internal::pieces_of(model)) {
    if (layers > 1) result.push_back({first, first + layers - 1});
    first += layers;
  }
  return result;
}

// Makes the profiles' sum what one stage takes for the same micro-batches.
void fit_profiles(Costs& costs, int64_t rows, int64_t chunks, double measured) {
  const internal::CutSizes sizes = internal::cut_sizes(rows, chunks);
  const int64_t last = rows - sizes.rows * (sizes.micro_batches - 1);
  const double sum =
      static_cast<double>(sizes.micro_batches - 1) * diagnosis::work_of(costs.at(sizes.rows)) +
      diagnosis::work_of(costs.at(last));
  const double loss = (costs.loss_forward + costs.loss_backward) * static_cast<double>(rows);
  if (sum <= 0 || measured <= loss) return;
  const double factor = (measured - loss) / sum;
  for (Profile& profile : costs.profiles) {
    for (balance::LayerProfile& layer : profile.layers) {
      layer.forward *= factor;
      layer.backward *= factor;
    }
  }
}

}  // namespace

Diagnosis diagnose(GPipe pipe, const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                   const DiagnoseOptions& options) {
  check(pipe, inputs, loss_fn, options);
  const int64_t rows = internal::batch_size(inputs, "input");
  const internal::CutSizes sizes = internal::cut_sizes(rows, pipe->chunks());
  const auto partitions = static_cast<int64_t>(pipe->balance().size());
  const std::vector<c10::Device>& devices = pipe->devices();
  const bool on_cpu =
      std::all_of(devices.begin(), devices.end(), [](c10::Device d) { return d.is_cpu(); });

  Diagnosis result;
  result.rows = rows;
  result.micro_batches = sizes.micro_batches;
  result.memory_limit = options.memory_limit();
  result.setup.balance = pipe->balance();
  result.setup.chunks = pipe->chunks();
  result.setup.checkpoints = pipe->partition_checkpoints();
  result.setup.schedule = schedule_now(options, partitions, sizes.micro_batches);
  const Setup& setup = result.setup;

  Costs costs;
  diagnosis::Machine machine;
  machine.cores = result.cores =
      diagnosis::partitions_at_once(devices, pipe->cpu_threads_per_stage(), options.cpu_cores());
  diagnosis::AdviceOptions wanted;
  wanted.chunks = chunks_of(pipe, rows, options);
  wanted.schedules = schedules_of(options);
  wanted.memory_limit = options.memory_limit();
  wanted.param_scale = options.param_scale();
  diagnosis::StepTimes steps;
  {
    const Guards guards(pipe);
    pipe->train();
    Measurements measure(pipe, inputs, targets, loss_fn, options);
    costs.together = together(measure.model(), options);
    std::set<int64_t> row_counts = {sizes.rows};
    for (const int64_t chunks : wanted.chunks) {
      const int64_t of = internal::cut_sizes(rows, chunks).rows;
      if (options.run_plain_model() || of <= sizes.rows) row_counts.insert(of);
    }
    measure.begin(static_cast<int64_t>(row_counts.size()) + 4);

    steps = measure.steps();
    result.workers = setup.schedule.make(partitions, sizes.micro_batches).workers();
    result.step = diagnosis::on_grid(steps.step);
    const diagnosis::Link link = diagnosis::measure_link(devices);
    machine.bandwidth = link.bandwidth;
    machine.latency = link.latency;

    const double single =
        measure.one_stage(pipe->chunks(), Schedule::one_f_one_b, "micro-batches on one device");
    result.whole_batch = options.run_plain_model();
    result.plain = single;
    if (options.run_plain_model()) {
      try {
        result.plain = measure.one_stage(1, Schedule::one_f_one_b, "the plain model");
      } catch (const c10::OutOfMemoryError&) {
        result.whole_batch = false;
      }
    }
    double all_held = single;
    if (on_cpu && result.whole_batch && sizes.micro_batches > 1) {
      all_held = measure.one_stage(pipe->chunks(), Schedule::gpipe, "micro-batches held at once");
    }
    const diagnosis::LossTimes loss = measure.loss(pipe->chunks());
    costs.loss_forward = loss.forward / static_cast<double>(sizes.rows);
    costs.loss_backward = loss.backward / static_cast<double>(sizes.rows);
    for (const int64_t of : row_counts) {
      if (of > sizes.rows && !result.whole_batch) continue;
      costs.profiles.push_back(measure.layers(of));
    }
    fit_profiles(costs, rows, pipe->chunks(), single);
    int64_t kept = 0;
    for (const balance::LayerProfile& layer : costs.at(sizes.rows).layers) kept += layer.kept;
    if (kept > 0) {
      costs.fresh_memory = std::max(0.0, all_held - single) / static_cast<double>(kept) /
                           static_cast<double>(sizes.micro_batches);
    }
  }
  if (!result.whole_batch) {
    wanted.chunks.erase(
        std::remove_if(wanted.chunks.begin(), wanted.chunks.end(),
                       [&](int64_t c) { return internal::cut_sizes(rows, c).rows > sizes.rows; }),
        wanted.chunks.end());
  }

  result.device = costs.profiles.front().device;
  if (on_cpu) {
    machine.contention = result.contention =
        diagnosis::fit_contention(costs, rows, setup, machine, steps.busy);
  }
  result.plain = diagnosis::on_grid(result.plain);
  result.ideal = diagnosis::on_grid(result.plain / static_cast<double>(result.workers));
  result.parts = diagnosis::break_down(costs, rows, setup, machine, result.ideal, result.step);
  const diagnosis::ModeledStep modeled = diagnosis::model_step(costs, rows, setup, machine);
  const std::vector<int64_t> memory =
      diagnosis::model_memory(costs, rows, setup, options.param_scale());
  for (size_t j = 0; j < modeled.partitions.size(); ++j) {
    const diagnosis::ModeledPartition& of = modeled.partitions[j];
    result.partitions.push_back({of.layers, of.work, of.recompute, memory[j]});
    const PartitionDiagnosis& most = result.partitions[static_cast<size_t>(result.binding)];
    if (of.work + of.recompute > most.work + most.recompute) {
      result.binding = static_cast<int64_t>(j);
    }
  }
  result.advice = diagnosis::find_advice(costs, rows, setup, machine, result.step, wanted);
  return result;
}

}  // namespace gpipe
