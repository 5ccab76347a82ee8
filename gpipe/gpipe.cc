#include "gpipe/gpipe.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <ostream>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpipe/batch_size.h"
#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/call/bridge.h"
#include "gpipe/internal/call/caller_modes.h"
#include "gpipe/internal/call/clipping.h"
#include "gpipe/internal/call/devices.h"
#include "gpipe/internal/call/hashing.h"
#include "gpipe/internal/call/model_checks.h"
#include "gpipe/internal/call/together.h"
#include "gpipe/internal/call/unscaling.h"
#include "gpipe/internal/call/warning_log.h"
#include "gpipe/internal/model/foreign_layers.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/model/loading.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/processes/call_terms.h"
#include "gpipe/internal/processes/connected.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/processes/residence.h"
#include "gpipe/internal/processes/ties.h"
#include "gpipe/internal/run/failure.h"
#include "gpipe/internal/run/make_pass.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/internal/threads/inside_pipeline.h"
#include "gpipe/runtime/exit_gate.h"
#include "skip/layout.h"
#include "skip/skippable.h"
#include "text/counted.h"
#include "text/shown.h"

namespace gpipe {
namespace {

using internal::Packet;
using internal::Pass;
using internal::ValueKind;

void check_no_pipelines(const torch::nn::Sequential& module) {
  for (const auto& entry : module->named_modules("", /*include_self=*/false)) {
    TORCH_CHECK_VALUE(dynamic_cast<const GPipeImpl*>(entry.value().get()) == nullptr,
                      text::in_quotes(entry.key()),
                      " in the model is a pipeline itself; put the inner model's layers into the "
                      "outer Sequential instead");
  }
}

void check_not_inside() {
  TORCH_CHECK_VALUE(
      !internal::inside_pipeline(),
      "a pipeline was made or called from inside a layer of a pipeline, or its loss function; put "
      "the inner model's layers into the outer Sequential instead, or call it before and give its "
      "output as an input or a target");
}

// Holds the run lock in a call that reads or writes gradients or parameters: no other thread's run
// changes them meanwhile. `pipeline`: null if there are no layers.
class BetweenRuns {
 public:
  explicit BetweenRuns(const internal::Pipeline* pipeline) {
    if (pipeline != nullptr) scope_.emplace(pipeline->run_lock());
  }

 private:
  std::optional<internal::RunLock::Scope> scope_;
};

// Warns, once in a pipeline's life, that LibTorch's generator was seeded during a run. It cannot
// tell whether a layer did so or another thread of the caller's.
class ReseedWatch {
 public:
  explicit ReseedWatch(internal::Pipeline& pipeline) : pipeline_(pipeline) {}
  ~ReseedWatch() {
    if (internal::process_seed() == before_ || !pipeline_.first_reseed()) return;
    internal::log_warning(
        "LibTorch's CPU generator was seeded (torch::manual_seed) while the pipeline ran. Seeding "
        "in a layer or a loss function does not change what is drawn there, because layers draw "
        "from the pipeline's own generators. It seeds the generator from which later calls take "
        "their seed, so with the same number each later call draws the same. Seed between calls "
        "(docs/guide/10-random-numbers.md)");
  }
  ReseedWatch(const ReseedWatch&) = delete;
  ReseedWatch& operator=(const ReseedWatch&) = delete;

 private:
  internal::Pipeline& pipeline_;
  const uint64_t before_ = internal::process_seed();
};

bool has_meta(const torch::nn::Module& layer) {
  const auto is_meta = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_meta();
  };
  const std::vector<at::Tensor> parameters = layer.parameters();
  const std::vector<at::Tensor> buffers = layer.buffers();
  return std::any_of(parameters.begin(), parameters.end(), is_meta) ||
         std::any_of(buffers.begin(), buffers.end(), is_meta);
}

// The caller may change outputs in place, so nothing else may share their memory.
void own_memory(const Tensors& inputs, const internal::ModelState& model, Tensors& outputs) {
  for (at::Tensor& output : outputs) {
    const c10::StorageImpl* storage = internal::storage_of(output);
    if (storage == nullptr) continue;
    const bool given = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
      return internal::storage_of(input) == storage;
    });
    if (given || model.owns(storage)) output = internal::copy_in_layout(output);
  }
}

// Warns once in a process, and names the placement to give. On accelerators a placement does not
// change how many threads there are, so only schedules with one worker are warned about.
void warn_without_placement(const Schedule& schedule, int64_t stages, bool on_cpu) {
  static std::atomic<bool> told{false};
  const int64_t workers = schedule.workers();
  if (schedule.stages() != stages || workers >= stages || (workers > 1 && !on_cpu)) return;
  std::string list;
  try {
    for (int64_t stage = 0; stage < stages; ++stage) {
      list += (stage == 0 ? "" : ", ") + std::to_string(schedule.worker_of(stage));
    }
  } catch (const std::invalid_argument&) {
    return;  // a stage that no worker runs: refused later
  }
  if (told.exchange(true)) return;
  internal::log_warning(
      "the schedule runs " + std::to_string(stages) + " stages on " +
      (workers == 1 ? "one worker, so nothing runs at the same time: one with several stages on "
                      "each worker (zb-v, interleaved, ...) needs that many partitions for each"
                    : std::to_string(workers) + " workers, each with the threads of one stage") +
      ". If that is intended, give GPipeOptions::placement(Placement::of({" + list +
      "})), so that the workers share all threads");
}

}  // namespace

GPipeImpl::GPipeImpl(torch::nn::Sequential module, GPipeOptions options)
    : torch::nn::Module("GPipe"),
      world_(options.world()),
      balance_(options.balance()),
      chunks_(options.chunks()),
      checkpoint_(options.checkpoint()),
      partition_checkpoints_(options.partition_checkpoints()),
      groups_(options.groups() == 0 && options.world().replicas() > 1 ? options.world().replicas()
                                                                      : options.groups()),
      shared_inputs_(options.shared_inputs()),
      deferred_batch_norm_(options.deferred_batch_norm()),
      cpu_threads_per_stage_(options.cpu_threads_per_stage()) {
  const internal::WorkScope work;
  if (processes() != nullptr) {
    check_not_inside();
  } else if (internal::first_alone_while_connected()) {
    internal::log_warning(
        "a pipeline was made without GPipeOptions::world, while this process is connected to "
        "others (World::from_environment): each process that makes such a one trains a whole model "
        "alone. To train one together, give .world(world)");
  }
  if (processes() == nullptr) {
    build(module, options);
    return;
  }
  internal::in_call(processes(), [&] {
    number_ = processes()->next_number();
    build(module, options);
    end_together("the making");
    processes()->take_number();
    return true;
  });
}

void GPipeImpl::build(const torch::nn::Sequential& module, const GPipeOptions& options) {
  TORCH_CHECK_VALUE(!module.is_empty(), "the model is an empty module holder; give a Sequential");
  internal::check_options(options);
  internal::check_layers(module);
  skip::verify_skippables(module);
  check_no_pipelines(module);
  internal::check_balance(balance_, module->size());
  internal::check_arguments(module, balance_);
  const size_t partitions = balance_.size();
  if (partition_checkpoints_.empty()) partition_checkpoints_.assign(partitions, checkpoint_);
  placement_ = options.placement();
  if (processes() != nullptr) check_world(options);
  std::optional<internal::Residence> residence;
  if (partitions > 0) residence.emplace(placement(), world_.process(), world_.processes_each());
  devices_ = processes() == nullptr
                 ? internal::devices_for(partitions, options.devices())
                 : internal::devices_of_process(partitions, options.devices(), *residence);
  internal::check_sharing(module, balance_, devices_, residence ? &*residence : nullptr);
  cpu_threads_per_stage_ = internal::share_of_cpu_threads(
      options.cpu_threads_per_stage(),
      residence ? internal::workers_on_cpu(placement(), residence->workers(), devices_) : 0);
  static std::atomic<bool> told_of_fewer{false};
  if (options.cpu_threads_per_stage() <= 0 && devices_.size() > 0 && devices_.front().is_cpu()) {
    const std::string fewer = internal::fewer_threads_text();
    if (!fewer.empty() && !told_of_fewer.exchange(true)) internal::log_warning(fewer);
  }
  if (processes() != nullptr) {
    internal::agree_on_pipeline(*processes(), "pipeline " + std::to_string(number_), module,
                                options, placement(), devices_.front().type(),
                                cpu_threads_per_stage_);
  }

  const skip::Layout layout = skip::Layout::inspect(module, balance_);
  train(module->is_training());  // before it has layers, which keep their own modes
  std::vector<std::vector<internal::Layer>> parts = internal::partitions_of(module, balance_);
  for (const std::vector<internal::Layer>& part : parts) {
    for (const internal::Layer& layer : part) {
      layers_.push_back(register_module(layer.name, layer.module.ptr()));
      callable_layers_.push_back(layer.module);
    }
  }
  if (partitions > 0) {
    input_kind_ = internal::argument_kind(parts[0][0].module);
    pipeline_ = std::make_shared<internal::Pipeline>(std::move(parts), devices_, layout,
                                                     options.cpu_threads_per_stage(), placement(),
                                                     options.ablation(), options.graphs(), world_);
  }
  place_layers();
  agree_on_values("the making");
}

// Replicas that begin with different values would train different models.
void GPipeImpl::agree_on_values(const char* what) const {
  if (world_.replicas() == 1) return;
  torch::OrderedDict<std::string, at::Tensor> named = named_parameters();
  for (const auto& buffer : named_buffers()) named.insert("buffer " + buffer.key(), buffer.value());
  internal::agree_on_values(world_, call_name(what), named);
}

// No process goes on as long as another one may fail: they would no longer make the same calls.
void GPipeImpl::end_together(const char* what) const {
  if (processes() == nullptr) return;
  (void)internal::end_together(world_, call_name(what), std::nullopt, /*last=*/0,
                               pipeline_->late_registrations());
}

std::string GPipeImpl::call_name(const char* what) const {
  return what + (" of pipeline " + std::to_string(number_));
}

void GPipeImpl::check_world(const GPipeOptions& options) const {
  TORCH_CHECK_VALUE(!balance_.empty(), "a model without layers has no stages to spread over ",
                    world_.size(), " processes");
  internal::check_replicas(options);
  TORCH_CHECK_VALUE(!options.graphs(),
                    "GPipeOptions::graphs are for a pipeline in one process: over several ones "
                    "packets go by way of the host, which no graph can replay");
  const int64_t workers = placement().workers();
  const int64_t each = world_.processes_each();
  TORCH_CHECK_VALUE(
      placement_.has_value() || workers == each || each == 1, "the balance has ", workers,
      " partitions, and there are ", each, " processes",
      world_.replicas() > 1 ? " in each replica" : "",
      ": say with GPipeOptions::placement which stages are in which process (Placement::loop(",
      each, ", v), or Placement::one_each(", workers, ").processes({...})), or give a balance of ",
      each, " partitions");
}

GPipeImpl::~GPipeImpl() = default;

void GPipeImpl::place_layers() {
  std::unordered_set<const c10::TensorImpl*> tied;  // tied parameters that layers here use, too
  if (pipeline_ != nullptr && !pipeline_->ties().ties().empty()) {
    for (size_t k = 0; k < layers_.size(); ++k) {
      if (!is_here(static_cast<int64_t>(k))) continue;
      for (const auto& [name, parameter] : internal::used_parameters(*layers_[k])) {
        tied.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  size_t index = 0;
  for (size_t j = 0; j < balance_.size(); ++j) {
    if (!pipeline_->residence().has_stage(static_cast<int64_t>(j))) {
      for (int64_t k = 0; k < balance_[j]; ++k) {
        internal::move_to_meta(*layers_[index++], tied);
      }
      continue;
    }
    // On meta, tensors are made on the current device (meta/meta_devices.h).
    c10::OptionalDeviceGuard guard;
    if (!devices_[j].is_cpu()) guard.reset_device(devices_[j]);
    for (int64_t k = 0; k < balance_[j]; ++k, ++index) {
      if (!devices_[j].is_meta() && has_meta(*layers_[index])) {
        on_meta_ = true;  // until materialize()
        continue;
      }
      layers_[index]->to(devices_[j]);
      for (at::Tensor& parameter : layers_[index]->parameters()) {
        at::Tensor& gradient = parameter.mutable_grad();
        if (gradient.defined() && gradient.device() != parameter.device()) {
          gradient = gradient.to(parameter.device());
        }
      }
    }
  }
}

void GPipeImpl::check_layers() const {
  constexpr char kHint[] =
      " after the pipeline was made, which runs the layers that it was made of. Make a new "
      "pipeline "
      "of a Sequential with the layers that are to run (a module inside a layer may be replaced)";
  const std::vector<std::shared_ptr<torch::nn::Module>> now = children();
  if (now != layers_) {
    const auto named = named_children();
    for (size_t k = 0; k < layers_.size(); ++k) {
      TORCH_CHECK_VALUE(k < named.size() && named[k].value() == layers_[k], "layer ", k, " of the ",
                        "pipeline was replaced or unregistered",
                        k < named.size()
                            ? absl::StrCat(" (there is ", text::in_quotes(named[k].key()), " now)")
                            : "",
                        kHint);
    }
    TORCH_CHECK_VALUE(false, "the module ", text::in_quotes(named[layers_.size()].key()),
                      " was registered in the pipeline", kHint);
  }
  const auto parameters = named_parameters(/*recurse=*/false);
  TORCH_CHECK_VALUE(parameters.is_empty(), "the parameter ", text::in_quotes(parameters[0].key()),
                    " was registered in the pipeline itself, and no layer uses it; register it in "
                    "the layer that does");
  const auto buffers = named_buffers(/*recurse=*/false);
  TORCH_CHECK_VALUE(buffers.is_empty(), "the buffer ", text::in_quotes(buffers[0].key()),
                    " was registered in the pipeline itself, and no layer uses it; register it in "
                    "the layer that does");
}

std::vector<at::Tensor> GPipeImpl::parameters(bool recurse) const {
  std::vector<at::Tensor> all = torch::nn::Module::parameters(recurse);
  std::unordered_set<const c10::TensorImpl*> seen;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const at::Tensor& parameter) {
                             return !seen.insert(parameter.unsafeGetTensorImpl()).second;
                           }),
            all.end());
  return all;
}

void GPipeImpl::load(torch::serialize::InputArchive& archive) {
  internal::check_outside_of_pipelines("torch::load into a pipeline");
  TORCH_CHECK_VALUE(world_.processes_each() == 1,
                    "torch::load into a pipeline over several processes: each has a part of the "
                    "layers only; call gpipe::load_checkpoint (gpipe/saving/saving.h) in all of "
                    "them, or load the plain model before the pipeline is made");
  const BetweenRuns between(pipeline_.get());
  {
    const internal::StateBeforeLoad before(*this);
    try {
      internal::check_layers_of(archive, *this);
      try {
        torch::nn::Module::load(archive);
      } catch (const c10::Error&) {
        internal::rethrow_with(std::current_exception(),
                               "nothing was loaded; is the checkpoint of another model?");
      }
      before.check_shapes();
    } catch (...) {
      before.restore();
      place_layers();
      throw;
    }
  }  // frees the old values before layers are placed, which needs the memory
  place_layers();
}

void GPipeImpl::save(torch::serialize::OutputArchive& archive) const {
  internal::check_outside_of_pipelines("torch::save of a pipeline");
  TORCH_CHECK_VALUE(world_.processes_each() == 1,
                    "torch::save of a pipeline over several processes: each has the values of a "
                    "part of the layers only; call gpipe::save_checkpoint (gpipe/saving/saving.h) "
                    "in all of them");
  const BetweenRuns between(pipeline_.get());
  torch::nn::Module::save(archive);
}

// Each replica would propagate only its own part into the graph that the tensor was computed by.
void GPipeImpl::check_no_way_behind(const char* what, size_t number, const at::Tensor& tensor,
                                    bool needs_record) const {
  TORCH_CHECK_VALUE(
      world_.replicas() == 1 || !needs_record || !tensor.requires_grad() || tensor.is_leaf(), what,
      " ", number,
      " was computed from a tensor that requires a gradient, of which each replica "
      "would get its own part; compute it in the model's layers, or detach() it");
}

Tensors GPipeImpl::cut_inputs(const char* what, const Tensors& inputs, bool needs_record) const {
  Tensors cut = inputs;
  for (const int64_t number : shared_inputs_) {
    if (inputs.empty()) continue;  // this process does not need inputs
    TORCH_CHECK_VALUE(number < static_cast<int64_t>(inputs.size()), what, " was given ",
                      inputs.size(), " input tensors, and GPipeOptions::shared_inputs names input ",
                      number, "; they are counted from 0");
    const at::Tensor& input = inputs[number];
    TORCH_CHECK_VALUE(
        world_.replicas() == 1 || !needs_record || !input.defined() || !input.requires_grad(),
        "input ", number,
        " is the same for all micro-batches (GPipeOptions::shared_inputs) and "
        "requires a gradient, of which each replica would get its own part; make it "
        "a parameter of the model");
    cut[number] = at::Tensor();
  }
  return cut;
}

std::unique_ptr<Pass> GPipeImpl::prepare(const char* what, const Tensors& inputs, bool needs_record,
                                         const StepOptions* options) const {
  check_layers();
  pipeline_->check_callable();
  internal::check_not_traced(what);
  internal::check_no_tangents("input", inputs);
  internal::check_no_tangents(layers_);
  TORCH_CHECK_VALUE(!on_meta_, what,
                    ": the model was built on meta, and its parameters have no "
                    "values yet; call materialize() before");
  if (world_.replicas() > 1 && !deferred_batch_norm_) {
    internal::check_no_running_statistics(layers_);
  }
  const bool first = pipeline_->has_first_stage();
  TORCH_CHECK_VALUE(
      !first || !inputs.empty(), what, " was given no input tensor",
      processes() == nullptr ? "" : "; this process has the first stage and needs it");
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].defined()) continue;
    TORCH_CHECK_VALUE(!first || inputs[k].device() == devices_.front(), "input ", k, " is on ",
                      inputs[k].device(), ", but the first partition is on ", devices_.front(),
                      "; move it there with .to()");
    TORCH_CHECK_VALUE(first || !needs_record || !inputs[k].requires_grad(), "input ", k,
                      " requires a gradient, but the first stage, where it would come from, is in "
                      "process ",
                      pipeline_->process_of_first_stage(), ": give it there, and here none");
    check_no_way_behind("input", k, inputs[k], needs_record);
  }
  const Tensors cut = cut_inputs(what, inputs, needs_record);
  const bool some =
      std::any_of(cut.begin(), cut.end(), [](const at::Tensor& input) { return input.defined(); });
  int64_t rows = first || some ? batch_size(cut, "input") : -1;
  std::optional<uint64_t> seed;
  if (processes() != nullptr) {
    internal::CallTerms terms;
    terms.same.emplace_back("the mode", is_training() ? "training" : "evaluation");
    if (options != nullptr) internal::add_terms(*options, terms);
    terms.rows = rows;
    terms.seed = internal::draw_step_seed();
    terms.zero_grads = zero_grads_;
    terms.changed_ties = pipeline_->ties().changed();
    terms.trained_ties = pipeline_->ties().trained();
    const internal::CallBegin begin = internal::begin_together(
        world_, call_name(what), terms, pipeline_->process_of_first_stage(), chunks_);
    rows = begin.rows;
    seed = begin.seed;
    if (needs_record) pipeline_->ties().check_trained(begin.trained_ties);
    internal::agree_after_failed_update(world_, call_name(what), *pipeline_, *this);
    pipeline_->ties().share(begin.changed_ties);
  }
  // Too many cells are refused here, before memory for them is allocated.
  const int64_t most = Schedule::kMostCells / pipeline_->stages();
  TORCH_CHECK_VALUE(std::min(rows, chunks_) <= most, "chunks(", chunks_, ") would cut the ", rows,
                    " rows into more than ", most, " micro-batches, the most for ",
                    pipeline_->stages(), " stages; give fewer chunks");
  internal::PassTerms terms;
  terms.mini_batch = internal::MiniBatch(rows, chunks_, world_.replica(), world_.replicas());
  terms.step_seed = seed ? *seed : internal::draw_step_seed();
  terms.record = needs_record;
  terms.checkpoints = partition_checkpoints_;
  if (!needs_record || !is_training()) {
    terms.checkpoints.assign(partition_checkpoints_.size(), Checkpoint::kNever);
  }
  if (first) {
    const ValueKind kind =
        input_kind_.value_or(inputs.size() == 1 ? ValueKind::kTensor : ValueKind::kTensors);
    // The kind is checked once, here on the caller's thread.
    terms.inputs = internal::shape_as(kind, inputs, "the model's first layer");
    terms.shared_inputs = shared_inputs_;
  }
  std::unique_ptr<Pass> pass = internal::make_pass(*pipeline_, std::move(terms));
  pass->plan.in_replicas = world_.replicas() > 1;
  pass->plan.first_micro_batch = chunks_ / world_.replicas() * world_.replica();
  if (options != nullptr && groups_ > 0) {
    pass->plan.group_size = chunks_ / groups_;
    pass->plan.groups_each = groups_ / world_.replicas();
  }
  pass->plan.defer_batch_norm = deferred_batch_norm_;
  return pass;
}

torch::Tensor GPipeImpl::forward(torch::Tensor input) {
  const bool needed = pipeline_ == nullptr || pipeline_->has_first_stage();
  TORCH_CHECK_VALUE(!needed || input.defined() || processes() != nullptr,
                    "the input is an undefined tensor");
  Tensors outputs =
      forward_all(input.defined() ? Tensors{std::move(input)} : Tensors(), /*one_output=*/true);
  return outputs.empty() ? at::Tensor() : std::move(outputs[0]);
}

Tensors GPipeImpl::forward(Tensors inputs) { return forward_all(inputs, /*one_output=*/false); }

Tensors GPipeImpl::forward_all(const Tensors& inputs, bool one_output) {
  check_not_inside();
  TORCH_CHECK_VALUE(!inputs.empty() || processes() != nullptr, "forward was given no input tensor");
  if (!pipeline_) return inputs;
  const internal::WorkScope work;
  // exit() in a layer may destroy the module (e.g. a static object), but not what is running.
  const std::shared_ptr<internal::Pipeline> pipeline = pipeline_;
  return internal::in_call(processes(), [&] { return run_forward(inputs, one_output); });
}

Tensors GPipeImpl::run_forward(const Tensors& inputs, bool one_output) {
  const bool record = c10::GradMode::is_enabled();
  TORCH_CHECK_VALUE(!record || processes() == nullptr,
                    "forward over several processes records no gradients: autograd's graph ends "
                    "with its process. Train with step(), which takes the loss function, and call "
                    "forward under torch::NoGradGuard");
  std::unique_ptr<Pass> pass = prepare("forward", inputs, record, nullptr);
  {
    const ReseedWatch watch(*pipeline_);
    pipeline_->run_forward(*pass);
  }
  Tensors outputs = outputs_of(*pass, inputs);
  const bool some = pipeline_->has_last_stage() && pass->micro_batches() > 0;
  TORCH_CHECK_VALUE(!one_output || !some || outputs.size() == 1, "the model gives ", outputs.size(),
                    " values; call forward with a std::vector<Tensor> to get them all");
  end_together("forward");
  pipeline_->ties().note_shared();
  if (!pipeline_->has_last_stage()) return {};
  std::vector<bool> needs_grad(outputs.size(), false);
  bool any = false;
  for (const Packet& packet : pass->outputs) {
    for (size_t n = 0; n < outputs.size(); ++n) {
      if (packet.items[n].needs_grad) needs_grad[n] = any = true;
    }
  }
  if (any) internal::attach_bridge(pipeline_, std::move(pass), inputs, outputs, needs_grad);
  return outputs;
}

std::unique_ptr<Pass> GPipeImpl::prepare_losses(const Tensors& inputs, const Tensors& targets,
                                                const LossFn& loss_fn, const StepOptions& options,
                                                bool backward) const {
  const char* const what = backward ? "step" : "evaluate";
  TORCH_CHECK_VALUE(loss_fn != nullptr, what, " was given an empty loss function");
  internal::check_no_tangents("target", targets);
  std::unique_ptr<Pass> pass = prepare(what, inputs, backward, &options);
  const internal::WeightsOfAll weights_of_all = [&](const std::vector<double>& own) {
    return internal::weights_of_all(world_, call_name(what), own,
                                    pipeline_->process_of_last_stage());
  };
  if (pipeline_->has_last_stage()) {
    pass->loss.emplace(targets, devices_.back(), pass->mini_batch, loss_fn, options, backward,
                       world_.replicas() > 1 ? weights_of_all : nullptr);
  } else {
    if (world_.replicas() > 1) (void)weights_of_all({});
    for (const at::Tensor& target : targets) {
      TORCH_CHECK_VALUE(!backward || !target.defined() || !target.requires_grad(),
                        "a target requires a gradient, but the last stage, where it would come "
                        "from, is in process ",
                        pipeline_->process_of_last_stage(), ": give it there, and here none");
    }
  }
  for (size_t k = 0; k < targets.size(); ++k) {
    if (targets[k].defined()) check_no_way_behind("target", k, targets[k], backward);
  }
  pass->keep_outputs = options.keep_outputs();
  return pass;
}

StepResult GPipeImpl::result_of(const char* what, Pass& pass, const Tensors& inputs,
                                const StepOptions& options) const {
  std::optional<internal::CallLosses> losses;
  if (pass.loss) {
    losses = {pass.loss->values(), pass.loss->shares()};
    if (std::isnan(internal::total_loss(losses->values, losses->shares))) {
      const std::string text = pass.loss->nan_text(losses->values);
      if (!text.empty() && pipeline_->first_nan()) internal::log_warning(text);
    }
  }
  pipeline_->check_late();
  StepResult result;
  if (options.keep_outputs()) result.outputs = outputs_of(pass, inputs);
  // Nothing may throw after end_together(): the other processes go on.
  if (processes() != nullptr) {
    losses =
        internal::end_together(world_, call_name(what), losses, pipeline_->process_of_last_stage(),
                               pipeline_->late_registrations());
    pipeline_->ties().note_shared();
  }
  result.loss = internal::total_loss(losses->values, losses->shares);
  result.losses = std::move(losses->values);
  return result;
}

// The outputs are where the last stage is.
Tensors GPipeImpl::outputs_of(const Pass& pass, const Tensors& inputs) const {
  if (!pipeline_->has_last_stage()) return {};
  Tensors outputs = pass.mini_batch.join(pass.outputs);
  if (pass.micro_batches() == 1) own_memory(inputs, pass.plan.model, outputs);
  return outputs;
}

Placement GPipeImpl::placement() const {
  return placement_ ? *placement_ : Placement::one_each(static_cast<int64_t>(balance_.size()));
}

Schedule GPipeImpl::schedule_of(const char* what, const StepOptions& options,
                                const Pass& pass) const {
  // A replica without rows runs nothing, but takes part in comparing the schedule.
  const int64_t micro_batches = std::max<int64_t>(pass.micro_batches(), 1);
  if (!placement_ && processes() == nullptr) {
    Schedule schedule = options.schedule_for(pipeline_->stages(), micro_batches);
    warn_without_placement(schedule, pipeline_->stages(), devices_.front().is_cpu());
    return schedule;
  }
  std::optional<Schedule> schedule;
  try {
    schedule = options.schedule_for(placement(), micro_batches);
  } catch (const std::invalid_argument& error) {
    // If the caller's generator itself throws, its exception is passed on unchanged.
    (void)options.schedule_for(pipeline_->stages(), micro_batches);
    TORCH_CHECK_VALUE(false, "the schedule does not fit GPipeOptions::placement: ", error.what());
  }
  if (processes() != nullptr && options.has_schedule()) {
    internal::agree_on_schedule(world_, call_name(what), *schedule);
  }
  return *std::move(schedule);
}

StepResult GPipeImpl::step(Tensors inputs, Tensors targets, const LossFn& loss_fn,
                           const StepOptions& options) {
  check_not_inside();
  TORCH_CHECK_VALUE(pipeline_ != nullptr, "step needs a model with at least one layer");
  const internal::WorkScope work;
  const std::shared_ptr<internal::Pipeline> pipeline = pipeline_;  // as in forward
  return internal::in_call(processes(),
                           [&] { return run_step(inputs, targets, loss_fn, options); });
}

StepResult GPipeImpl::run_step(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                               const StepOptions& options) {
  TORCH_CHECK_VALUE(
      c10::GradMode::is_enabled(),
      "step computes gradients, but gradients are switched off (torch::NoGradGuard, or inference "
      "mode); use forward, or evaluate for the loss alone");
  const std::unique_ptr<Pass> pass =
      prepare_losses(inputs, targets, loss_fn, options, /*backward=*/true);
  if (!is_training() && pipeline_->first_step_in_eval()) {
    internal::log_warning(
        "step() was called in evaluation mode (eval()): no dropout, no statistics of the batch, "
        "nothing is checkpointed. Call train() before, or evaluate() for a loss without gradients");
  }
  const internal::MiniBatch& mini_batch = pass->mini_batch;
  const Schedule schedule = schedule_of("step", options, *pass);
  {
    const ReseedWatch watch(*pipeline_);
    pipeline_->run_step(*pass, schedule, options.on_event(), options.check_finite());
  }
  internal::log_warning(pipeline_->unregistered_leaf_text());

  torch::autograd::edge_list roots;
  torch::autograd::variable_list gradients;
  auto send_on = [&](const Tensors& tensors, const auto& joined) {
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (!tensors[k].defined() || !tensors[k].requires_grad()) continue;
      at::Tensor gradient = joined(k);
      if (!gradient.defined()) continue;
      roots.push_back(torch::autograd::impl::gradient_edge(tensors[k]));
      gradients.push_back(std::move(gradient));
    }
  };
  send_on(targets, [&](size_t k) { return mini_batch.join_gradients(pass->target_gradients, k); });
  send_on(inputs, [&](size_t k) { return pass->inputs.join_gradients(pass->input_gradients, k); });
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }

  return result_of("step", *pass, inputs, options);
}

StepResult GPipeImpl::evaluate(Tensors inputs, Tensors targets, const LossFn& loss_fn,
                               const StepOptions& options) {
  check_not_inside();
  TORCH_CHECK_VALUE(pipeline_ != nullptr, "evaluate needs a model with at least one layer");
  const internal::WorkScope work;
  const std::shared_ptr<internal::Pipeline> pipeline = pipeline_;  // as in forward
  return internal::in_call(processes(),
                           [&] { return run_evaluation(inputs, targets, loss_fn, options); });
}

StepResult GPipeImpl::run_evaluation(const Tensors& inputs, const Tensors& targets,
                                     const LossFn& loss_fn, const StepOptions& options) {
  const at::NoGradGuard no_grad;  // the workers' too
  const std::unique_ptr<Pass> pass =
      prepare_losses(inputs, targets, loss_fn, options, /*backward=*/false);
  const Schedule schedule = schedule_of("evaluate", options, *pass);
  {
    const ReseedWatch watch(*pipeline_);
    pipeline_->run_evaluation(*pass, schedule, options.on_event(), options.check_finite());
  }
  return result_of("evaluate", *pass, inputs, options);
}

double GPipeImpl::clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite) {
  const internal::WorkScope work;
  return internal::in_call(processes(), [&] {
    check_layers();
    // With different arguments each process would scale its gradients by another factor.
    if (processes() != nullptr) {
      internal::agree_on_names(world_, call_name("clip_grad_norm_"),
                               absl::StrFormat("%.17g, %.17g, %s", max_norm, norm_type,
                                               error_if_nonfinite ? "true" : "false"),
                               pipeline_->late_registrations());
    }
    const BetweenRuns between(pipeline_.get());
    const torch::OrderedDict<std::string, at::Tensor> named = named_parameters();
    const double norm =
        internal::clip_gradients(named.values(), max_norm, norm_type, error_if_nonfinite, world_,
                                 call_name("clip_grad_norm_"), named.keys());
    end_together("clip_grad_norm_");  // scaling may fail here alone
    return norm;
  });
}

bool GPipeImpl::unscale_gradients_(double loss_scale) {
  const internal::WorkScope work;
  return internal::in_call(processes(), [&] {
    check_layers();
    if (processes() != nullptr) {
      internal::agree_on_names(world_, call_name("unscale_gradients_"),
                               absl::StrFormat("%.17g", loss_scale),
                               pipeline_->late_registrations());
    }
    const BetweenRuns between(pipeline_.get());
    const bool finite = internal::unscale_gradients(named_parameters().values(), loss_scale, world_,
                                                    call_name("unscale_gradients_"));
    end_together("unscale_gradients_");
    return finite;
  });
}

bool GPipeImpl::is_here(int64_t layer) const {
  (void)(*this)[layer];  // throws if there is none
  int64_t left = layer < 0 ? layer + static_cast<int64_t>(layers_.size()) : layer;
  int64_t stage = 0;
  while (left >= balance_[static_cast<size_t>(stage)]) {
    left -= balance_[static_cast<size_t>(stage++)];
  }
  return pipeline_->residence().has_stage(stage);
}

std::vector<at::Tensor> GPipeImpl::local_parameters() const {
  return pipeline_ ? pipeline_->local_parameters() : std::vector<at::Tensor>();
}

torch::OrderedDict<std::string, at::Tensor> GPipeImpl::local_named_parameters() const {
  std::unordered_set<const c10::TensorImpl*> local;
  for (const at::Tensor& parameter : local_parameters()) {
    local.insert(parameter.unsafeGetTensorImpl());
  }
  torch::OrderedDict<std::string, at::Tensor> named("Parameter");
  for (const auto& item : named_parameters()) {
    if (local.erase(item.value().unsafeGetTensorImpl()) == 1) {
      named.insert(item.key(), item.value());
    }
  }
  return named;
}

std::string GPipeImpl::parameter_hash() const {
  const internal::WorkScope work;
  return internal::in_call(processes(), [&] {
    check_layers();
    if (processes() != nullptr) {
      internal::agree_on_names(world_, call_name("parameter_hash"), /*arguments=*/"",
                               pipeline_->late_registrations());
    }
    const BetweenRuns between(pipeline_.get());
    torch::OrderedDict<std::string, at::Tensor> named = named_parameters();
    if (processes() != nullptr) {
      // Copies of tied parameters may have the last step's values.
      std::unordered_set<const c10::TensorImpl*> owned;
      for (const at::Tensor& local : local_parameters()) owned.insert(local.unsafeGetTensorImpl());
      for (auto& parameter : named) {
        if (owned.count(parameter.value().unsafeGetTensorImpl()) != 0) continue;
        parameter.value() = at::Tensor();
      }
    }
    return internal::hash_parameters(named, processes(), call_name("parameter_hash"));
  });
}

void GPipeImpl::materialize(const LayerInit& init) {
  const internal::WorkScope work;
  internal::in_call(processes(), [&] {
    TORCH_CHECK_VALUE(init != nullptr, "materialize was given an empty function");
    check_layers();
    const uint64_t seed = internal::shared_seed(processes(), call_name("materialize"));
    const BetweenRuns between(pipeline_.get());
    const auto children = named_children();
    size_t index = 0;
    for (size_t j = 0; j < balance_.size(); ++j) {
      const bool here = pipeline_->residence().has_stage(static_cast<int64_t>(j));
      for (int64_t k = 0; k < balance_[j]; ++k, ++index) {
        if (!here) continue;
        internal::materialize(*layers_[index], children[index].key() + ".", devices_[j], seed,
                              init);
      }
    }
    on_meta_ = false;
    place_layers();  // for tensors of the same layers that were not on meta
    agree_on_values("materialize");
    end_together("materialize");
    return true;
  });
}

const std::shared_ptr<torch::nn::Module>& GPipeImpl::operator[](int64_t index) const {
  const int64_t count = static_cast<int64_t>(layers_.size());
  TORCH_CHECK_INDEX(index >= -count && index < count, "layer ", index,
                    " does not exist: the pipeline has ", count, " layers");
  return layers_[index < 0 ? index + count : index];
}

torch::nn::Sequential GPipeImpl::sequential() const {
  TORCH_CHECK_VALUE(world_.processes_each() == 1,
                    "sequential() of a pipeline over several processes would have the values of a "
                    "part of the layers only; call gpipe::save_checkpoint (gpipe/saving/saving.h) "
                    "in all of them, and load it into a pipeline in one");
  check_layers();
  torch::nn::Sequential plain;
  size_t index = 0;
  for (const auto& child : named_children()) {
    plain->push_back(child.key(), callable_layers_[index++]);
  }
  return plain;
}

Routes GPipeImpl::routes() const { return pipeline_ ? pipeline_->routes() : Routes::create(1); }

std::optional<Failure> GPipeImpl::last_failure() const {
  return pipeline_ ? pipeline_->last_failure() : std::nullopt;
}

std::vector<GraphUse> GPipeImpl::graph_use() const {
  return pipeline_ ? pipeline_->graph_use() : std::vector<GraphUse>();
}

namespace {

[[noreturn]] void refuse_move(c10::Device device) {
  TORCH_CHECK_TYPE(
      false, "a pipeline cannot be moved to ", device,
      ": each partition lives on its own device; give other devices in GPipeOptions and "
      "make a new pipeline");
}

}  // namespace

void GPipeImpl::to(torch::Device device, torch::Dtype, bool) { refuse_move(device); }
void GPipeImpl::to(torch::Device device, bool) { refuse_move(device); }
void GPipeImpl::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
}

void GPipeImpl::zero_grad(bool set_to_none) {
  ++zero_grads_;
  torch::nn::Module::zero_grad(set_to_none);
}

void GPipeImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::GPipe(balance=" << internal::list_text(balance_) << ", devices={";
  for (size_t j = 0; j < devices_.size(); ++j) stream << (j == 0 ? "" : ", ") << devices_[j];
  stream << "}, chunks=" << chunks_ << ", checkpoint=";
  const auto& modes = partition_checkpoints_;
  if (std::all_of(modes.begin(), modes.end(), [&](Checkpoint m) { return m == checkpoint_; })) {
    stream << to_text(checkpoint_) << ")";
  } else {
    stream << "{";
    for (size_t j = 0; j < modes.size(); ++j) stream << (j == 0 ? "" : ", ") << to_text(modes[j]);
    stream << "})";
  }
  // LibTorch prints the layers, with all that is in them, below this.
  size_t first = 0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (size_t j = 0; j < balance_.size(); ++j) {
    const size_t end = first + static_cast<size_t>(balance_[j]);
    int64_t parameters = 0;
    for (size_t k = first; k < end; ++k) {
      for (const at::Tensor& parameter : layers_[k]->parameters()) {
        if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters += parameter.numel();
      }
    }
    stream << "\n  partition " << j << " on " << devices_[j];
    if (processes() != nullptr) {
      stream << " in process " << pipeline_->residence().process_of_stage(static_cast<int64_t>(j));
    }
    stream << ": ";
    if (end - first == 1) {
      stream << "layer " << first;
    } else {
      stream << "layers " << first << " to " << end - 1;
    }
    stream << ", " << text::counted(parameters, "parameter");
    first = end;
  }
}

}  // namespace gpipe
