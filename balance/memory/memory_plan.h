// memory_plan: plans the memory that a pipelined training step takes on each device, without the
// devices and without the memory.
//
// The model is built on the meta device (meta/meta_scope.h), where tensors have shapes but no
// values. The plan runs real training steps of a gpipe::GPipe over it, each stage on a meta device
// of its own. It records every block of memory that the steps take, including copies between
// devices, recomputes, gradients and the optimizer. Nothing is estimated by formulas.
//
// A plan cannot see memory that kernels take on an accelerator in addition to tensors (workspaces
// of cuDNN and cuBLAS), the driver's own memory, and that of other programs. CUDA and the CPU have
// different operators for fused attention, LSTM and dropout: a plan is for one of the two, and says
// which of its operators make it uncertain (docs/design/meta.md).
//
// Autocast is as in a real step: by the caller's guard or a layer's own, for this type of device.
// The optimizer is planned outside of the caller's guard, as training loops call it there.
#ifndef BALANCE_MEMORY_MEMORY_PLAN_H_
#define BALANCE_MEMORY_MEMORY_PLAN_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "balance/memory/memory_trace.h"
#include "balance/memory/plan_uncertainty.h"
#include "gpipe/ablation.h"
#include "gpipe/checkpoint.h"
#include "gpipe/options.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// Makes the optimizer for the parameters of one stage.
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

// Reports how many of the plan's actions have run.
using PlanProgress = std::function<void(int64_t done, int64_t total)>;

struct MemoryPlanOptions {
  // `balance` as in GPipeOptions.
  MemoryPlanOptions(std::vector<int64_t> balance)  // NOLINT: implicit
      : balance_(std::move(balance)) {}

  TORCH_ARG(std::vector<int64_t>, balance);
  // As in GPipeOptions.
  TORCH_ARG(int64_t, chunks) = 1;
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};
  TORCH_ARG(int64_t, groups) = 0;
  TORCH_ARG(Checkpoint, checkpoint) = Checkpoint::kExceptLast;
  TORCH_ARG(std::vector<Checkpoint>, partition_checkpoints) = {};
  TORCH_ARG(bool, deferred_batch_norm) = false;
  TORCH_ARG(Ablation, ablation) = Ablation();
  // As in StepOptions. Offloads are planned, too, with the pinned memory that they need. Default:
  // Schedule::one_f_one_b.
  TORCH_ARG(ScheduleGenerator, schedule) = nullptr;
  // Makes the optimizer. Default: none, parameters are never updated.
  TORCH_ARG(MakeOptimizer, optimizer) = nullptr;
  // Whether the gradients are freed after each step, as by Optimizer::zero_grad(). If false, the
  // next step adds to them.
  TORCH_ARG(bool, zero_grad) = true;
  // The type of the devices: c10::kCUDA or c10::kCPU.
  TORCH_ARG(c10::DeviceType, device_type) = c10::kCUDA;
  // The device of each stage, counted from 0. Default: each stage has its own.
  TORCH_ARG(std::vector<int64_t>, device_of_stage) = {};
  // The bytes of each device for the model of the allocator (caching_allocator.h), which gives back
  // what it has cached before it runs out. Default: 0, no limit.
  TORCH_ARG(int64_t, capacity) = 0;
  // Called after each action, on the pipeline's threads, one at a time. An exception that it throws
  // ends the plan. Default: none.
  TORCH_ARG(PlanProgress, progress) = nullptr;
};

// Bytes on one device.
struct DeviceMemory {
  int64_t parameter_count = 0;  // number of elements
  int64_t parameters = 0;
  int64_t gradients = 0;        // bytes after a step
  int64_t optimizer_state = 0;  // bytes after a step
  int64_t buffers = 0;
  // The moment at which the device holds most.
  MemoryPeak peak;
  // The most bytes that LibTorch's CUDA allocator would reserve; -1: it runs out of memory.
  int64_t reserved = 0;
};

struct MemoryPlan {
  std::vector<int64_t> balance;              // number of layers of each stage
  std::vector<int64_t> device_of_stage;      // as given, or 0, 1, ...
  c10::DeviceType device_type = c10::kCUDA;  // as given
  // The type that autocast casts to in the caller's guard ("bfloat16", "float16"). Empty: off.
  std::string autocast;
  bool deferred_batch_norm = false;    // as given
  std::vector<Uncertainty> uncertain;  // caused by operators that ran
  int64_t parameters = 0;              // number of elements in the whole model
  std::vector<DeviceMemory> devices;
  // [stage] The bytes of pinned memory of the host that its offloads need. Empty: the schedule has
  // no offloads.
  std::vector<int64_t> pinned;
  int64_t capacity = 0;  // bytes of each device, as given; 0: no limit
  MemoryTrace trace;     // the trace of two steps

  // Sums over the devices, in bytes.
  int64_t total_bytes() const;     // sum of the peaks
  int64_t total_reserved() const;  // -1: a device runs out of memory
};

// Plans two training steps on a mini-batch: the first begins without gradients and optimizer state,
// the second with those that the first has left.
//
// `model`: all of its tensors must be on meta. `inputs`, `targets`: the mini-batch; only shapes and
// types matter, so tensors on meta are enough. `loss` as in GPipeImpl::step.
//
// The model stays on `meta`, without gradients. Few operators check types of values on meta: a plan
// with targets of a wrong type is worthless.
//
// Throws c10::ValueError for a model with a tensor that is not on meta (the message names it), for
// a schedule with offloads if the devices are CPUs, and for whatever GPipe and step() refuse.
// Throws std::logic_error if another plan is being made. Passes on what a layer throws, with the
// layer's place: c10::NotImplementedError for an operator that cannot run on meta.
//
// Example:
//   torch::nn::Sequential model = [] { MetaScope meta; return models::unet(); }();
//   auto images = at::empty({32, 3, 192, 192}, at::kMeta);
//   MemoryPlan plan = memory_plan(model, {images}, {masks}, loss,
//                                 MemoryPlanOptions({60, 58}).chunks(8).optimizer(sgd));
//   plan.devices[1].peak.bytes;
MemoryPlan memory_plan(const torch::nn::Sequential& model, const Tensors& inputs,
                       const Tensors& targets, const LossFn& loss,
                       const MemoryPlanOptions& options);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_MEMORY_PLAN_H_
