// memory_plan: how much memory a pipelined training step takes on each device, without the devices
// and without the memory.
//
// The model is built on the meta device (meta/meta_scope.h), where tensors have shapes and no
// values. The plan runs real training steps of a gpipe::GPipe over it, each stage on a meta device
// of its own, and records every block of memory that they take: copies between devices, recomputes,
// gradients and the optimizer included. Nothing is estimated from formulas.
//
// What it cannot see: memory that kernels take on an accelerator beside tensors (workspaces of
// cuDNN and cuBLAS), the driver's own, and other programs'. Some operators are others on CUDA than
// on the CPU (fused attention, LSTM, dropout): a plan is for one of the two, and says which of its
// operators make it uncertain (docs/design/meta.md).
//
// Autocast holds as in a real step: the caller's guard, or a layer's own, for that type of devices.
// The optimizer is planned outside of the caller's guard, where training loops have it.
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

// Makes the optimizer of some parameters: those of one stage.
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

// How many of a plan's actions have been run.
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
  // As in StepOptions. Default: Schedule::one_f_one_b.
  TORCH_ARG(ScheduleGenerator, schedule) = nullptr;
  // Default: none, parameters are never updated.
  TORCH_ARG(MakeOptimizer, optimizer) = nullptr;
  // Whether the gradients are given back after each step, as Optimizer::zero_grad() does. If not,
  // the next step adds to them.
  TORCH_ARG(bool, zero_grad) = true;
  // The type of the devices: c10::kCUDA or c10::kCPU.
  TORCH_ARG(c10::DeviceType, device_type) = c10::kCUDA;
  // The device of each stage, counted from 0. Default: one for each.
  TORCH_ARG(std::vector<int64_t>, device_of_stage) = {};
  // What each device has, in bytes, for the model of the allocator (caching_allocator.h): it gives
  // back what it has cached before it runs out. Default: 0, no limit.
  TORCH_ARG(int64_t, capacity) = 0;
  // Called on the pipeline's threads, one at a time, after each action. It may throw to end the
  // plan. Default: none.
  TORCH_ARG(PlanProgress, progress) = nullptr;
};

// Bytes on one device.
struct DeviceMemory {
  int64_t parameter_count = 0;  // a number of numbers
  int64_t parameters = 0;
  int64_t gradients = 0;        // after a step
  int64_t optimizer_state = 0;  // as well
  int64_t buffers = 0;
  // When it holds most.
  MemoryPeak peak;
  // What LibTorch's allocator for CUDA would have reserved at most; -1: it runs out of memory.
  int64_t reserved = 0;
};

struct MemoryPlan {
  std::vector<int64_t> balance;              // the stages' numbers of layers
  std::vector<int64_t> device_of_stage;      // as given, or 0, 1, ...
  c10::DeviceType device_type = c10::kCUDA;  // as given
  // What autocast casts to in the caller's guard ("bfloat16", "float16"). Empty: not enabled.
  std::string autocast;
  bool deferred_batch_norm = false;    // as given
  std::vector<Uncertainty> uncertain;  // what operators that ran make it
  int64_t parameters = 0;              // their number, in the whole model
  std::vector<DeviceMemory> devices;
  int64_t capacity = 0;  // of each device, as given; 0: no limit
  MemoryTrace trace;     // of two steps

  // Sums over the devices, in bytes.
  int64_t total_bytes() const;     // of the peaks
  int64_t total_reserved() const;  // -1: one runs out of memory
};

// Plans two training steps on a mini-batch: the first has neither gradients nor optimizer state to
// begin with, the second has what is left by the first.
//
// `model`: all of its tensors on meta. `inputs`, `targets`: the mini-batch; only shapes and types
// matter, so tensors on meta do. `loss` as in GPipeImpl::step.
//
// The model is left on `meta` and without gradients. Few operators check the types of values on
// meta: a plan with targets of a wrong type says nothing.
//
// Throws c10::ValueError for a model with a tensor elsewhere than on meta (which it names) and for
// whatever GPipe and step() refuse; std::logic_error if another plan is being made; what a layer
// throws, with its place: c10::NotImplementedError for an operator that cannot run on meta.
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
