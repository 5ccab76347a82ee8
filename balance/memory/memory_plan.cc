#include "balance/memory/memory_plan.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "balance/costs/autocast.h"
#include "balance/memory/caching_allocator.h"
#include "balance/memory/compared_operators.h"
#include "balance/memory/memory_recorder.h"
#include "balance/memory/operator_census.h"
#include "gpipe/batch_size.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/operators/gathering.h"
#include "gpipe/schedule/offloads.h"
#include "interception/allocations.h"
#include "meta/meta_autocast.h"
#include "meta/meta_devices.h"
#include "meta/meta_kernels.h"
#include "meta/meta_target.h"
#include "text/shown.h"

namespace gpipe::balance {
namespace {

// The number of planned steps; all later steps are like the second.
constexpr int64_t kSteps = 2;

c10::Device meta(int64_t k) { return {c10::kMeta, static_cast<c10::DeviceIndex>(k)}; }

// Calls visit(tensor, name, is_parameter) for the parameters and buffers.
template <typename Visit>
void for_each_tensor(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& item : module.named_parameters()) visit(item.value(), item.key(), true);
  for (const auto& item : module.named_buffers()) visit(item.value(), item.key(), false);
}

void check_model(const torch::nn::Sequential& model) {
  TORCH_CHECK_VALUE(!model.is_empty(), "the model is an empty module holder; give a Sequential");
  for_each_tensor(*model, [](const at::Tensor& tensor, const std::string& name, bool parameter) {
    TORCH_CHECK_VALUE(!tensor.defined() || tensor.is_meta(),
                      "a memory plan needs a model on the "
                      "meta device, but its ",
                      parameter ? "parameter " : "buffer ", text::in_quotes(name), " is on ",
                      tensor.device(),
                      "; build the model while a gpipe::MetaScope lives (meta/meta_scope.h). "
                      "There, too, a tensor made of values, such as torch::tensor({1.0, 2.0}), is "
                      "on the CPU: give it torch::kMeta, or use torch::empty");
  });
}

std::vector<int64_t> device_of_stage(const MemoryPlanOptions& options) {
  const auto stages = static_cast<int64_t>(options.balance().size());
  std::vector<int64_t> devices = options.device_of_stage();
  if (devices.empty()) {
    devices.resize(stages);
    std::iota(devices.begin(), devices.end(), int64_t{0});
  }
  TORCH_CHECK_VALUE(static_cast<int64_t>(devices.size()) == stages, "device_of_stage names ",
                    devices.size(), " devices, but the balance has ", stages, " partitions");
  for (const int64_t device : devices) {
    TORCH_CHECK_VALUE(device >= 0 && device < kMostMetaDevices, "device_of_stage names device ",
                      device, "; the devices of a plan are 0 to ", kMostMetaDevices - 1);
  }
  return devices;
}

// Returns a tensor like `tensor` on the meta device that stands for `device`.
at::Tensor placed_on(int64_t device, const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const c10::DeviceGuard guard(meta(device));
  at::Tensor moved = at::empty_strided(tensor.sizes(), tensor.strides(),
                                       tensor.options().device(c10::kMeta).requires_grad(false));
  return moved.requires_grad_(tensor.requires_grad());
}

Tensors placed_on(int64_t device, const Tensors& tensors) {
  Tensors moved;
  for (const at::Tensor& tensor : tensors) moved.push_back(placed_on(device, tensor));
  return moved;
}

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.storage().nbytes());
}

class MemoryPlanner {
 public:
  MemoryPlanner(const torch::nn::Sequential& model, const Tensors& inputs, const Tensors& targets,
                const LossFn& loss, const MemoryPlanOptions& options)
      : options_(options),
        devices_(device_of_stage(options)),
        pipe_(model, pipe_options()),
        inputs_(placed_on(devices_.front(), inputs)),
        targets_(placed_on(devices_.back(), targets)),
        loss_(loss) {
    plan_.balance = options.balance();
    plan_.capacity = options.capacity();
    plan_.device_of_stage = devices_;
    plan_.device_type = options.device_type();
    plan_.autocast = autocast_name(options.device_type());
    plan_.deferred_batch_norm = options.deferred_batch_norm();
    plan_.devices.resize(1 + *std::max_element(devices_.begin(), devices_.end()));
    add_model();
  }

  MemoryPlan run() {
    release_gradients();
    const ChunkSizes sizes =
        chunk_sizes(batch_size(inputs_, "input", options_.shared_inputs()), options_.chunks());
    StepOptions step_options;
    if (options_.schedule()) step_options.schedule(options_.schedule());
    const Schedule schedule =
        step_options.schedule_for(static_cast<int64_t>(devices_.size()), sizes.micro_batches);
    const bool offloads = schedule != without_offloads(schedule);
    TORCH_CHECK_VALUE(!offloads || options_.device_type() != c10::kCPU,
                      "the schedule has offloads, but the plan is for CPUs, whose memory is the "
                      "host's; plan for CUDA devices, or give without_offloads(schedule) "
                      "(gpipe/schedule/offloads.h)");
    MemoryRecorder recorder(c10::kMeta, schedule,
                            std::vector<int32_t>(devices_.begin(), devices_.end()));
    add_existing(recorder);
    for (const std::vector<Action>& actions : schedule.table()) {
      total_ += kSteps * static_cast<int64_t>(actions.size());
    }
    {
      const OperatorCensus census;
      const internal::AllocationScope scope(recorder);
      for (int k = 0; k < kSteps; ++k) {
        step(recorder, schedule);
        update(recorder);
        if (k + 1 == kSteps) break;
        if (options_.zero_grad()) release_gradients();
      }
      plan_.uncertain = uncertainties(census.operators(), options_.device_type());
      if (std::optional<Uncertainty> never =
              never_compared(census.calls(), options_.device_type())) {
        plan_.uncertain.push_back(std::move(*never));
      }
    }
    if (offloads) plan_.pinned = recorder.pinned();
    plan_.trace = recorder.finish();
    const std::vector<MemoryPeak> peaks = balance::peaks(plan_.trace);
    const std::vector<int64_t> reserved = peak_reserved(plan_.trace, options_.capacity());
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      plan_.devices[d].peak = peaks[d];
      plan_.devices[d].reserved = reserved[d];
    }
    for (const MemoryEvent& event : plan_.trace.events) {
      const MemoryBlock& block = plan_.trace.blocks[event.block];
      DeviceMemory& device = plan_.devices[block.device];
      const int64_t bytes = event.free ? -block.bytes : block.bytes;
      if (block.use == MemoryUse::kGradients) device.gradients += bytes;
      if (block.use == MemoryUse::kOptimizerState) device.optimizer_state += bytes;
    }
    return std::move(plan_);
  }

 private:
  GPipeOptions pipe_options() const {
    std::vector<c10::Device> devices;
    for (const int64_t device : devices_) devices.push_back(meta(device));
    return GPipeOptions(options_.balance())
        .devices(devices)
        .chunks(options_.chunks())
        .shared_inputs(options_.shared_inputs())
        .groups(options_.groups())
        .checkpoint(options_.checkpoint())
        .partition_checkpoints(options_.partition_checkpoints())
        .deferred_batch_norm(options_.deferred_batch_norm())
        .ablation(options_.ablation());
  }

  // The parameters of each stage; a parameter counts at the first stage that has it.
  std::vector<std::vector<at::Tensor>> parameters_of_stages() {
    std::vector<std::vector<at::Tensor>> stages(devices_.size());
    std::unordered_set<const c10::TensorImpl*> seen;
    int64_t index = 0;
    for (size_t j = 0; j < devices_.size(); ++j) {
      for (int64_t k = 0; k < options_.balance()[j]; ++k, ++index) {
        for (const at::Tensor& parameter : pipe_[index]->parameters()) {
          if (seen.insert(parameter.unsafeGetTensorImpl()).second) stages[j].push_back(parameter);
        }
      }
    }
    return stages;
  }

  void add_model() {
    std::unordered_set<const c10::TensorImpl*> seen;
    std::unordered_set<const c10::StorageImpl*> storages;
    int64_t index = 0;
    for (size_t j = 0; j < devices_.size(); ++j) {
      DeviceMemory& device = plan_.devices[devices_[j]];
      for (int64_t k = 0; k < options_.balance()[j]; ++k, ++index) {
        for_each_tensor(*pipe_[index], [&](const at::Tensor& tensor, const std::string&, bool is) {
          if (!tensor.defined()) return;
          if (is && seen.insert(tensor.unsafeGetTensorImpl()).second) {
            plan_.parameters += tensor.numel();
            device.parameter_count += tensor.numel();
          }
          if (!storages.insert(tensor.storage().unsafeGetStorageImpl()).second) return;
          (is ? device.parameters : device.buffers) += bytes_of(tensor);
          existing_.push_back({bytes_of(tensor), static_cast<int32_t>(devices_[j]),
                               is ? MemoryUse::kParameters : MemoryUse::kBuffers});
        });
      }
    }
    for (const at::Tensor& tensor : inputs_) add_data(tensor, devices_.front());
    for (const at::Tensor& tensor : targets_) add_data(tensor, devices_.back());
  }

  void add_data(const at::Tensor& tensor, int64_t device) {
    if (!tensor.defined()) return;
    existing_.push_back({bytes_of(tensor), static_cast<int32_t>(device), MemoryUse::kData});
  }

  void add_existing(MemoryRecorder& recorder) const {
    for (const MemoryBlock& block : existing_) recorder.add(block.bytes, block.device, block.use);
  }

  void release_gradients() {
    for (at::Tensor& parameter : pipe_->parameters()) parameter.mutable_grad() = at::Tensor();
  }

  void step(MemoryRecorder& recorder, const Schedule& schedule) {
    recorder.begin_step();
    const c10::DeviceGuard guard(meta(devices_.front()));  // the caller's current device
    pipe_->step(inputs_, targets_, loss_,
                StepOptions().schedule(schedule).on_event([&](const Event& event) {
                  recorder.on_event(event);
                  if (event.edge == Event::Edge::kEnd) report();
                }));
  }

  void report() {
    if (!options_.progress()) return;
    const std::lock_guard<std::mutex> lock(progress_mutex_);
    ++done_;
    options_.progress()(done_, total_);
  }

  void update(MemoryRecorder& recorder) {
    recorder.begin_optimizer();
    if (!options_.optimizer()) return;
    // The caller's autocast guard covers only the step and not the optimizer.
    const WithoutAutocast outside(options_.device_type());
    if (optimizers_.empty()) {
      for (const std::vector<at::Tensor>& parameters : parameters_of_stages()) {
        // Some optimizers (Adagrad) make their state in the constructor; it must be on the stage's
        // device, too.
        const c10::DeviceGuard guard(meta(devices_[optimizers_.size()]));
        optimizers_.push_back(parameters.empty() ? nullptr : options_.optimizer()(parameters));
        TORCH_CHECK_VALUE(
            parameters.empty() || optimizers_.back(),
            "MemoryPlanOptions::optimizer returned a null pointer; return an optimizer");
      }
    }
    for (size_t j = 0; j < optimizers_.size(); ++j) {
      if (!optimizers_[j]) continue;
      const c10::DeviceGuard guard(meta(devices_[j]));
      optimizers_[j]->step();
    }
  }

  const MemoryPlanOptions& options_;
  const std::vector<int64_t> devices_;  // [stage]
  GPipe pipe_;
  const Tensors inputs_;
  const Tensors targets_;
  const LossFn& loss_;
  std::vector<MemoryBlock> existing_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>>
      optimizers_;  // [stage]; null: no parameters
  MemoryPlan plan_;

  std::mutex progress_mutex_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

// Moves the model back to `meta`, where it was.
class BackToMeta {
 public:
  explicit BackToMeta(const torch::nn::Sequential& model) : model_(model) {}
  ~BackToMeta() {
    const PlainMetaScope plain;
    for (at::Tensor& parameter : model_->parameters()) parameter.mutable_grad() = at::Tensor();
    try {
      model_->to(c10::kMeta);
    } catch (...) {  // a user's own to() failed: the plan's result is more useful
    }
  }
  BackToMeta(const BackToMeta&) = delete;
  BackToMeta& operator=(const BackToMeta&) = delete;

 private:
  torch::nn::Sequential model_;
};

}  // namespace

int64_t MemoryPlan::total_bytes() const {
  int64_t sum = 0;
  for (const DeviceMemory& device : devices) sum += device.peak.bytes;
  return sum;
}

int64_t MemoryPlan::total_reserved() const {
  int64_t sum = 0;
  for (const DeviceMemory& device : devices) {
    if (device.reserved < 0) return -1;
    sum += device.reserved;
  }
  return sum;
}

MemoryPlan memory_plan(const torch::nn::Sequential& model, const Tensors& inputs,
                       const Tensors& targets, const LossFn& loss,
                       const MemoryPlanOptions& options) {
  check_model(model);
  TORCH_CHECK_VALUE(options.capacity() >= 0, "capacity is ", options.capacity(),
                    " bytes; give what each device has, or 0 for no limit");
  // Only one plan is made at a time, because the whole process shares the meta devices.
  static std::mutex planning;
  const std::unique_lock<std::mutex> lock(planning, std::try_to_lock);
  if (!lock.owns_lock()) {
    throw std::logic_error("another memory plan is being made in this process; make one at a time");
  }
  const MetaTargetScope target(options.device_type());
  std::optional<internal::CpuGatheringScope> gathering;
  if (options.device_type() == c10::kCPU) gathering.emplace();
  const MetaAutocastScope autocast(options.device_type());
  install_meta_devices();
  install_meta_kernels();
  const BackToMeta back(model);
  return MemoryPlanner(model, inputs, targets, loss, options).run();
}

}  // namespace gpipe::balance
