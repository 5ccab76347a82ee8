#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/call/call_agreement.h"
#include "gpipe/internal/call/caller_modes.h"
#include "gpipe/internal/call/devices.h"
#include "gpipe/internal/call/model_checks.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/model/remote_layers.h"
#include "gpipe/internal/processes/connected.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/processes/stage_map.h"
#include "gpipe/internal/processes/tied_parameters.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/warning_log.h"
#include "skip/layout.h"
#include "skip/skippable.h"
#include "text/shown.h"

namespace gpipe {
namespace {

void check_no_pipelines(const torch::nn::Sequential& module) {
  for (const auto& entry : module->named_modules("", /*include_self=*/false)) {
    TORCH_CHECK_VALUE(dynamic_cast<const GPipeImpl*>(entry.value().get()) == nullptr,
                      text::in_quotes(entry.key()),
                      " in the model is a pipeline itself; put the inner model's layers into the "
                      "outer Sequential instead");
  }
}

bool has_meta(const torch::nn::Module& layer) {
  const auto is_meta = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_meta();
  };
  const std::vector<at::Tensor> parameters = layer.parameters();
  const std::vector<at::Tensor> buffers = layer.buffers();
  return std::any_of(parameters.begin(), parameters.end(), is_meta) ||
         std::any_of(buffers.begin(), buffers.end(), is_meta);
}

// Whether this process has made a pipeline with a world. If so, a pipeline without a world is meant
// to run in this process alone, and needs no warning.
std::atomic<bool> one_has_a_world{false};

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
    internal::check_not_inside();
    one_has_a_world = true;
  } else if (!one_has_a_world && internal::first_alone_while_connected()) {
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
    agree_on_end("the making");
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
  std::optional<internal::StageMap> stage_map;
  if (partitions > 0) stage_map.emplace(placement(), world_.process(), world_.processes_each());
  devices_ = processes() == nullptr
                 ? internal::devices_for(partitions, options.devices())
                 : internal::devices_of_process(partitions, options.devices(), *stage_map);
  internal::check_sharing(module, balance_, devices_, stage_map ? &*stage_map : nullptr);
  cpu_threads_per_stage_ = internal::share_of_cpu_threads(
      options.cpu_threads_per_stage(),
      stage_map ? internal::workers_on_cpu(placement(), stage_map->workers(), devices_) : 0);
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
  train(module->is_training());  // before layers are registered: they keep their own modes
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

// Throws if the replicas begin with different values, because they would train different models.
void GPipeImpl::agree_on_values(const char* what) const {
  if (world_.replicas() == 1) return;
  torch::OrderedDict<std::string, at::Tensor> named = named_parameters();
  for (const auto& buffer : named_buffers()) named.insert("buffer " + buffer.key(), buffer.value());
  internal::agree_on_values(world_, call_name(what), named);
}

GPipeImpl::~GPipeImpl() = default;

Placement GPipeImpl::placement() const {
  return placement_ ? *placement_ : Placement::one_each(static_cast<int64_t>(balance_.size()));
}

void GPipeImpl::place_layers() {
  std::unordered_set<const c10::TensorImpl*> tied;  // tied parameters that layers here use, too
  if (pipeline_ != nullptr && !pipeline_->tied_over_processes().parameters().empty()) {
    for (size_t k = 0; k < layers_.size(); ++k) {
      if (!is_here(static_cast<int64_t>(k))) continue;
      for (const auto& [name, parameter] : internal::used_parameters(*layers_[k])) {
        tied.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  size_t index = 0;
  for (size_t j = 0; j < balance_.size(); ++j) {
    if (!pipeline_->stage_map().has_stage(static_cast<int64_t>(j))) {
      for (int64_t k = 0; k < balance_[j]; ++k) {
        internal::move_to_meta(*layers_[index++], tied);
      }
      continue;
    }
    // The stage's device becomes the current one, because meta/meta_devices.h makes tensors on the
    // current device.
    c10::OptionalDeviceGuard guard;
    if (!devices_[j].is_cpu()) guard.reset_device(devices_[j]);
    for (int64_t k = 0; k < balance_[j]; ++k, ++index) {
      if (!devices_[j].is_meta() && has_meta(*layers_[index])) {
        on_meta_ = true;  // until materialize() is called
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

void GPipeImpl::check_world(const GPipeOptions& options) const {
  TORCH_CHECK_VALUE(!balance_.empty(), "a model without layers has no stages to spread over ",
                    world_.size(),
                    " processes; give it a layer for each, or leave GPipeOptions::world out");
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

// Such a tensor is refused over replicas, because each replica would propagate only its own part of
// the gradient into the graph that has computed the tensor.
void GPipeImpl::check_no_way_behind(const char* what, size_t number, const at::Tensor& tensor,
                                    bool needs_record) const {
  TORCH_CHECK_VALUE(
      world_.replicas() == 1 || !needs_record || !tensor.requires_grad() || tensor.is_leaf(), what,
      " ", number,
      " was computed from a tensor that requires a gradient, of which each replica "
      "would get its own part; compute it in the model's layers, or detach() it");
}

}  // namespace gpipe
