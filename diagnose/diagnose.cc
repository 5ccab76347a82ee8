#include "diagnose/diagnose.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "balance/costs/model_guard.h"
#include "balance/costs/profile.h"
#include "balance/costs/profiler.h"
#include "balance/cut/pieces.h"
#include "command/other_load.h"
#include "diagnose/advice.h"
#include "diagnose/breakdown.h"
#include "diagnose/contradiction.h"
#include "diagnose/costs.h"
#include "diagnose/measure.h"
#include "diagnose/named_choices.h"
#include "diagnose/step_model.h"
#include "gpipe/batch_size.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/layer_runs/layer_runs.h"
#include "gpipe/placement.h"
#include "text/counted.h"

namespace gpipe {
namespace {

using balance::Profile;
using diagnosis::Costs;

// The most micro-batches for each partition that are tried by default.
constexpr int64_t kMostChunksPerPartition = 8;

// The ranges of layers within which no cut is allowed: layers that the profile measures together,
// and the ranges of DiagnoseOptions::keep_together.
std::vector<balance::LayerRange> together(const torch::nn::Sequential& model,
                                          const DiagnoseOptions& options) {
  std::vector<balance::LayerRange> result = options.keep_together();
  for (const balance::LayerRange& range : balance::joined_layers(internal::pieces_of(model))) {
    result.push_back(range);
  }
  return result;
}

void check_keep_together(const GPipe& pipe, const DiagnoseOptions& options) {
  const torch::nn::Sequential model = pipe->sequential();
  const auto layers = static_cast<int64_t>(model->size());
  for (const balance::LayerRange& range : options.keep_together()) {
    TORCH_CHECK_VALUE(range.first >= 0 && range.first <= range.last && range.last < layers,
                      "keep_together has layers ", range.first, " to ", range.last,
                      "; expected first <= last, both from 0 to ", layers - 1);
  }
  std::set<int64_t> closed;  // layers with which no partition may begin
  for (const balance::LayerRange& range : together(model, options)) {
    for (int64_t i = range.first + 1; i <= range.last; ++i) closed.insert(i);
  }
  const int64_t pieces = layers - static_cast<int64_t>(closed.size());
  const auto partitions = static_cast<int64_t>(pipe->balance().size());
  TORCH_CHECK_VALUE(pieces >= partitions, "keep_together leaves ", text::counted(pieces, "piece"),
                    " of ", layers, " layers for ", partitions, " partitions; join fewer layers");
}

void check(const GPipe& pipe, const Tensors& inputs, const LossFn& loss_fn,
           const DiagnoseOptions& options) {
  TORCH_CHECK_VALUE(!pipe.is_empty(), "diagnose was given an empty module holder; give a pipeline");
  TORCH_CHECK_VALUE(pipe->size() > 0,
                    "diagnose was given a model without layers; give one with at least one layer");
  TORCH_CHECK_VALUE(loss_fn != nullptr,
                    "diagnose was given an empty loss function; give the one that steps are given");
  TORCH_CHECK_VALUE(!inputs.empty(), "diagnose was given no input tensor; give a mini-batch");
  TORCH_CHECK_VALUE(pipe->world().size() == 1,
                    "diagnose is for a pipeline in one process, and this one is over ",
                    pipe->world().size(),
                    "; diagnose the same model and balance in one (without GPipeOptions::world), "
                    "or look where the time went with gpipe::gather_timelines "
                    "(gpipe/distributed/gather_timelines.h) and split_time");
  TORCH_CHECK_VALUE(
      batch_size(inputs, "input", pipe->shared_inputs()) > 0,
      "the mini-batch has 0 rows, so there is nothing to diagnose; give one as large as a step's");
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
  for (const ScheduleChoice& schedule : options.schedules()) {
    TORCH_CHECK_VALUE(schedule.make != nullptr, "the schedule '", schedule.name,
                      "' to choose from is empty; give a generator");
  }
  TORCH_CHECK_VALUE(options.memory_limit() >= 0,
                    "memory_limit must be 0 (none) or a number of bytes, got ",
                    options.memory_limit());
  TORCH_CHECK_VALUE(options.param_scale() >= 0 && options.param_scale() <= balance::kMostParamScale,
                    "param_scale must be a number from 0 to ", balance::kMostParamScale, ", got ",
                    options.param_scale());
  TORCH_CHECK_VALUE(options.cpu_cores() >= 0,
                    "cpu_cores must be 0 (those of this machine) or more, got ",
                    options.cpu_cores());
  check_keep_together(pipe, options);
}

// The schedule of the present steps.
ScheduleGenerator schedule_now(const GPipe& pipe, const StepOptions& step) {
  const Placement placement = pipe->placement();
  const bool shared = placement.workers() < placement.stages();
  return [step, placement, shared](int64_t stages, int64_t count) {
    return shared ? step.schedule_for(placement, count) : step.schedule_for(stages, count);
  };
}

// The placements that need no other setting to change: the placement of the present steps, and the
// pipeline's. The latter has each stage on a worker of its own, unless a placement was given.
std::vector<Placement> placements_for(const GPipe& pipe, const Schedule& now) {
  std::vector<Placement> result;
  try {
    result.push_back(now.placement());
  } catch (const std::invalid_argument&) {  // the schedule has a worker without actions
  }
  const Placement given = pipe->placement();
  const bool known = std::any_of(result.begin(), result.end(), [&](const Placement& placement) {
    return placement.worker_of_stage() == given.worker_of_stage();
  });
  if (!known) result.push_back(given);
  return result;
}

// The schedules that fit the pipeline's placement. If each stage has a worker of its own, all
// schedules fit.
std::vector<ScheduleChoice> fitting(const GPipe& pipe, std::vector<ScheduleChoice> schedules,
                                    int64_t micro_batches) {
  const Placement placement = pipe->placement();
  if (placement.workers() == placement.stages()) return schedules;
  const auto does_not_fit = [&](const ScheduleChoice& known) {
    try {
      known.make(placement.stages(), micro_batches).check(placement);
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  };
  schedules.erase(std::remove_if(schedules.begin(), schedules.end(), does_not_fit),
                  schedules.end());
  return schedules;
}

struct Schedules {
  // The present schedule, under the name of an equal named schedule if there is one.
  ScheduleChoice now;
  std::vector<ScheduleChoice> wanted;  // to choose from
};

// The present schedule, and the schedules to choose from. `all`: the numbers of micro-batches that
// may be tried.
Schedules schedules_of(const GPipe& pipe, const DiagnoseOptions& options, int64_t micro_batches,
                       const std::set<int64_t>& all) {
  const ScheduleGenerator make = schedule_now(pipe, options.step());
  const int64_t partitions = pipe->placement().stages();
  const Schedule now = make(partitions, micro_batches);
  Schedules result;
  result.wanted = options.schedules();
  if (result.wanted.empty()) {
    for (const Placement& placement : placements_for(pipe, now)) {
      const std::vector<ScheduleChoice> known = diagnosis::named_choices(placement, all);
      result.wanted.insert(result.wanted.end(), known.begin(), known.end());
    }
  }
  result.now = {"as given", make};
  for (const ScheduleChoice& known : result.wanted) {
    try {
      if (known.make(partitions, micro_batches) != now) continue;
    } catch (const std::invalid_argument&) {
      // The schedule does not support this number of micro-batches.
      continue;
    }
    result.now.name = known.name;
    break;
  }
  if (options.schedules().empty()) {
    // "gpipe" is left out, because it adds gradients up in another order than all other schedules
    // and is as fast as fill-drain.
    const auto is_gpipe = [](const ScheduleChoice& known) { return known.name == "gpipe"; };
    result.wanted.erase(std::remove_if(result.wanted.begin(), result.wanted.end(), is_gpipe),
                        result.wanted.end());
  }
  result.wanted = fitting(pipe, std::move(result.wanted), micro_batches);
  if (result.wanted.empty()) result.wanted.push_back(result.now);
  return result;
}

// The numbers of micro-batches to choose from.
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

// Whether skips go straight to the stage that pops them. True if no skip passes a stage.
bool has_direct_skips(const GPipe& pipe, const Profile& profile) {
  const Routes routes = pipe->routes();
  for (int64_t stage = 0; stage < routes.stages(); ++stage) {
    for (const RouteId id : routes.outgoing(stage)) {
      if (routes[id].target_stage > stage + 1) return true;
    }
  }
  std::vector<size_t> stage_of;
  for (size_t j = 0; j < pipe->balance().size(); ++j) {
    stage_of.insert(stage_of.end(), static_cast<size_t>(pipe->balance()[j]), j);
  }
  return std::all_of(profile.skips.begin(), profile.skips.end(),
                     [&](const balance::SkipProfile& skip) {
                       return stage_of.at(static_cast<size_t>(skip.to)) <=
                              stage_of.at(static_cast<size_t>(skip.from)) + 1;
                     });
}

Tensors moved(const Tensors& tensors, c10::Device device) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach().to(device) : tensor);
  }
  return result;
}

// While it lives, the model and the generators of all devices may change; its destructor restores
// them.
class Guards {
 public:
  explicit Guards(GPipe pipe) : model_(*pipe, pipe->devices().front()) {
    for (const c10::Device& device : pipe->devices()) {
      if (device.is_cuda() && device != pipe->devices().front())
        generator_guards_.emplace_back(none_, device);
    }
  }

 private:
  struct Nothing : torch::nn::Module {};
  Nothing none_;
  balance::ModelGuard model_;
  std::deque<balance::ModelGuard> generator_guards_;
};

// Makes the single measurements of a pipeline and its model.
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
        rows_(batch_size(inputs, "input", pipe_->shared_inputs())) {}

  const torch::nn::Sequential& model() const { return model_; }

  diagnosis::StepTimer steps() const {
    return {pipe_, inputs_, targets_, loss_fn_, options_.step()};
  }

  // Steps of the model in one stage on the first device. The model stays on that device from now
  // on.
  diagnosis::StepTimer one_stage(int64_t chunks, const ScheduleGenerator& schedule) const {
    StepOptions step = options_.step();
    step.schedule(schedule);
    return {one_stage_pipe(chunks), inputs_, moved(targets_, device_), loss_fn_, step};
  }

  // The times of the loss function for micro-batches in one stage.
  diagnosis::LossTimes loss(int64_t chunks) const {
    GPipe single = one_stage_pipe(chunks);
    const Tensors targets = moved(targets_, device_);
    StepOptions step = options_.step();
    step.schedule(Schedule::one_f_one_b).keep_outputs(true).on_event(nullptr);
    const Tensors outputs = single->step(moved(inputs_, device_), targets, loss_fn_, step).outputs;
    const internal::MiniBatch mini_batch(rows_, chunks);
    return diagnosis::measure_loss(mini_batch.slice(outputs, 0), mini_batch.slice(targets, 0),
                                   loss_fn_);
  }

  Profile layers(int64_t rows) const {
    return balance::profile(model_, inputs_,
                            balance::ProfileOptions()
                                .micro_batch_rows(rows)
                                .shared_inputs(pipe_->shared_inputs())
                                .timeout(options_.seconds() / 2)
                                .progress([check = options_.check()](const balance::TimeProgress&) {
                                  if (check) check();
                                })
                                .cpu_threads(pipe_->cpu_threads_per_stage())
                                .deferred_batch_norm(pipe_->deferred_batch_norm())
                                .keep_together(options_.keep_together()));
  }

 private:
  GPipe one_stage_pipe(int64_t chunks) const {
    return GPipe(model_, GPipeOptions({static_cast<int64_t>(model_->size())})
                             .devices({device_})
                             .chunks(chunks)
                             .shared_inputs(pipe_->shared_inputs())
                             .checkpoint(Checkpoint::kNever)
                             .deferred_batch_norm(pipe_->deferred_batch_norm())
                             .cpu_threads_per_stage(pipe_->cpu_threads_per_stage()));
  }

  const GPipe pipe_;
  torch::nn::Sequential model_;
  c10::Device device_;
  const Tensors& inputs_;
  const Tensors& targets_;
  const LossFn& loss_fn_;
  const DiagnoseOptions& options_;
  int64_t rows_;
};

// The results of the measurements.
struct Measured {
  diagnosis::StepTimes steps;
  // Seconds of a step with the same micro-batches in one stage.
  double single = 0;
  // Seconds of a step in one stage, by the number of rows of a micro-batch.
  std::map<int64_t, double> by_rows;
  // Like `single`, but with all micro-batches held at once. 0 if it was not measured.
  double held = 0;
  diagnosis::Link link;
  Costs costs;
};

// Scales the profile's times so that their sum is the time that one stage takes for a mini-batch of
// such micro-batches, without the loss.
void fit_profile(Profile& profile, const Costs& costs, int64_t rows, double measured) {
  const double loss = (costs.loss_forward + costs.loss_backward) * static_cast<double>(rows);
  const double sum = diagnosis::work_of(profile) * static_cast<double>(rows) /
                     static_cast<double>(profile.batch_rows);
  if (sum <= 0 || measured <= loss) return;
  for (balance::LayerProfile& layer : profile.layers) {
    scale_times(layer, (measured - loss) / sum);
  }
}

// Timers of pipelines of one stage, by the rows of a micro-batch, for those numbers of rows that
// the model takes. `present`: the number of rows that must work.
std::map<int64_t, diagnosis::StepTimer> one_stage_timers(
    const Measurements& measurements, const std::map<int64_t, int64_t>& chunks_by_rows,
    int64_t present, const std::function<void()>& check) {
  std::map<int64_t, diagnosis::StepTimer> stages;
  for (const auto& [each, count] : chunks_by_rows) {
    check();
    diagnosis::StepTimer timer = measurements.one_stage(count, Schedule::one_f_one_b);
    try {
      timer.run(/*counts=*/false);
    } catch (const c10::OutOfMemoryError&) {
      if (each <= present) throw;
      break;  // if these rows do not fit, more rows do not, either
    } catch (const std::exception&) {
      // Numbers of rows that the model refuses are left out, as batch norms refuse a single row.
      // Only the present number must work.
      if (each == present) throw;
      continue;
    }
    stages.emplace(each, std::move(timer));
  }
  return stages;
}

// Makes all measurements. `chunks`: the numbers of micro-batches to choose from.
Measured measure(GPipe pipe, const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                 const std::vector<int64_t>& chunks, const DiagnoseOptions& options) {
  const int64_t rows = batch_size(inputs, "input", pipe->shared_inputs());
  const ChunkSizes sizes = chunk_sizes(rows, pipe->chunks());
  const std::vector<c10::Device>& devices = pipe->devices();
  const bool one_device = std::all_of(devices.begin(), devices.end(),
                                      [&](c10::Device d) { return d == devices.front(); });
  const Guards guards(pipe);
  pipe->train();
  const Measurements measurements(pipe, inputs, targets, loss_fn, options);
  Measured result;
  result.costs.together = together(measurements.model(), options);

  std::map<int64_t, int64_t> chunks_by_rows = {{sizes.rows, pipe->chunks()}};
  for (const int64_t count : chunks) {
    const int64_t each = chunk_sizes(rows, count).rows;
    if (options.run_plain_model() || each <= sizes.rows) chunks_by_rows.insert({each, count});
  }
  if (options.run_plain_model()) chunks_by_rows.insert({rows, 1});
  const auto all = static_cast<int64_t>(chunks_by_rows.size()) + 1;
  const auto tell = [&](const std::string& what, int64_t done) {
    if (options.progress()) options.progress()(what, done, all);
  };
  const auto check = [&] {
    if (options.check()) options.check()();
  };

  tell("steps", 0);
  diagnosis::StepTimer steps = measurements.steps();
  steps.run(/*counts=*/false);
  if (!one_device) diagnosis::run_in_turns({&steps}, options.seconds(), check);
  result.link = diagnosis::measure_link(devices);

  std::map<int64_t, diagnosis::StepTimer> stages =
      one_stage_timers(measurements, chunks_by_rows, sizes.rows, check);
  // `held`: one stage that holds all micro-batches at once. It is for the CPU only, where memory is
  // given back and taken anew, which costs time. Accelerators keep it.
  std::optional<diagnosis::StepTimer> held;
  if (devices.front().is_cpu() && sizes.micro_batches > 1 && stages.count(rows) > 0) {
    held = measurements.one_stage(pipe->chunks(), Schedule::gpipe);
  }
  std::vector<diagnosis::StepTimer*> timers;
  if (one_device) timers.push_back(&steps);
  if (held) timers.push_back(&*held);
  for (auto& [each, timer] : stages) timers.push_back(&timer);
  diagnosis::run_in_turns(timers, options.seconds(), check);
  result.steps = steps.times();
  for (const auto& [each, timer] : stages) result.by_rows[each] = timer.times().step;
  result.single = result.by_rows.at(sizes.rows);
  if (held) result.held = held->times().step;

  Costs& costs = result.costs;
  const diagnosis::LossTimes loss = measurements.loss(pipe->chunks());
  costs.loss_forward = loss.forward / static_cast<double>(sizes.rows);
  costs.loss_backward = loss.backward / static_cast<double>(sizes.rows);
  for (const auto& [each, seconds] : result.by_rows) {
    tell("layers, " + text::counted(each, "row"), static_cast<int64_t>(costs.profiles.size()) + 1);
    costs.profiles.push_back(measurements.layers(each));
    fit_profile(costs.profiles.back(), costs, rows, seconds);
  }
  int64_t kept = 0;
  for (const balance::LayerProfile& layer : costs.at(sizes.rows).layers) kept += layer.kept;
  if (kept > 0 && held) {
    costs.fresh_memory = std::max(0.0, result.held - result.single) / static_cast<double>(kept) /
                         static_cast<double>(sizes.micro_batches);
  }
  return result;
}

void add_partitions(const diagnosis::ModeledStep& modeled, const diagnosis::ModeledMemory& memory,
                    Diagnosis* result) {
  for (size_t j = 0; j < modeled.partitions.size(); ++j) {
    const diagnosis::ModeledPartition& partition = modeled.partitions[j];
    result->partitions.push_back(
        {partition.layers, partition.work, partition.recompute, memory.partitions[j]});
    const PartitionDiagnosis& most = result->partitions[static_cast<size_t>(result->binding)];
    if (partition.work + partition.recompute > most.work + most.recompute) {
      result->binding = static_cast<int64_t>(j);
    }
  }
}

}  // namespace

Diagnosis diagnose(GPipe pipe, const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                   const DiagnoseOptions& options) {
  check(pipe, inputs, loss_fn, options);
  const int64_t rows = batch_size(inputs, "input", pipe->shared_inputs());
  const ChunkSizes sizes = chunk_sizes(rows, pipe->chunks());
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
  result.setup.shared_inputs = pipe->shared_inputs();
  diagnosis::AdviceOptions wanted;
  wanted.chunks = chunks_of(pipe, rows, options);
  std::set<int64_t> micro_batches = {sizes.micro_batches};
  for (const int64_t chunks : wanted.chunks) {
    micro_batches.insert(chunk_sizes(rows, chunks).micro_batches);
  }
  Schedules schedules = schedules_of(pipe, options, sizes.micro_batches, micro_batches);
  result.setup.schedule = std::move(schedules.now);
  wanted.schedules = std::move(schedules.wanted);
  const PipelineSetup& setup = result.setup;
  wanted.memory_limit = options.memory_limit();
  wanted.param_scale = options.param_scale();
  wanted.check = options.check();
  const command::OtherLoad load;
  const Measured measured = measure(pipe, inputs, targets, loss_fn, wanted.chunks, options);
  // If the caller gives a number of cores, the load is not checked, because this machine's load
  // says nothing about those cores.
  const std::optional<command::LoadShares> shares =
      on_cpu && options.cpu_cores() == 0 ? load.shares() : std::nullopt;
  const Costs& costs = measured.costs;
  result.setup.direct_skips = has_direct_skips(pipe, costs.profiles.front());
  const auto unknown = [&](int64_t chunks) {
    return measured.by_rows.count(chunk_sizes(rows, chunks).rows) == 0;
  };
  wanted.chunks.erase(std::remove_if(wanted.chunks.begin(), wanted.chunks.end(), unknown),
                      wanted.chunks.end());
  const auto plain = measured.by_rows.find(rows);
  result.whole_batch = plain != measured.by_rows.end();
  result.plain = diagnosis::on_grid(result.whole_batch ? plain->second : measured.single);
  result.step = diagnosis::on_grid(measured.steps.step);
  result.workers = setup.schedule_for(sizes.micro_batches).workers();
  diagnosis::Machine machine;
  machine.cores = result.cores =
      diagnosis::partitions_at_once(devices, pipe->cpu_threads_per_stage(), options.cpu_cores());
  machine.bandwidth = measured.link.bandwidth;
  machine.latency = measured.link.latency;

  result.device = costs.profiles.front().device;
  if (on_cpu) {
    machine.contention = result.contention =
        diagnosis::fit_contention(costs, rows, setup, machine, measured.steps.busy);
  }
  result.ideal = diagnosis::on_grid(result.plain / static_cast<double>(result.workers));
  result.parts = diagnosis::break_down(costs, rows, setup, machine, result.ideal, result.step);
  const diagnosis::ModeledStep modeled = diagnosis::model_step(costs, rows, setup, machine);
  diagnosis::ModeledMemory memory =
      diagnosis::model_memory(costs, rows, setup, options.param_scale());
  add_partitions(modeled, memory, &result);
  result.memory = std::move(memory.workers);
  if (shares) result.warning = diagnosis::disturbance(*shares);
  if (result.warning.empty()) result.warning = diagnosis::contradiction(result);
  if (!result.warning.empty()) return result;
  result.advice = diagnosis::find_advice(costs, rows, setup, machine, result.step, wanted);
  return result;
}

}  // namespace gpipe
