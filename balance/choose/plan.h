// plan: how to train a model on given devices: balance, placement, micro-batches, checkpoints and
// schedule, chosen together.
//
// docs/guide/20-which-schedule.md shows it; docs/design/planner.md says how it is searched.
#ifndef BALANCE_CHOOSE_PLAN_H_
#define BALANCE_CHOOSE_PLAN_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "balance/choose/pipeline_plan.h"
#include "balance/choose/plan_check.h"
#include "balance/choose/plan_search.h"
#include "balance/costs/flops.h"
#include "balance/costs/profile.h"
#include "balance/memory/memory_plan.h"
#include "balance/step/explain.h"
#include "gpipe/checkpoint.h"
#include "gpipe/options.h"

namespace gpipe::balance {

// Called before each part of a plan and during it, on any one thread at a time. What it throws ends
// the plan. `note` says what is being done.
using PlanNote = std::function<void(const std::string& note)>;

struct PlanOptions {
  // How many devices there are, all alike. Each gets at least one layer.
  PlanOptions(int64_t devices) : devices_(devices) {}  // NOLINT: implicit
  TORCH_ARG(int64_t, devices);
  // Bytes of each device. Default: 0, no limit.
  TORCH_ARG(int64_t, memory) = 0;

  // What may be chosen. Default: all powers of two of micro-batches and the number of rows, without
  // those of which one has a single row where there are batch norms
  // (balance/choose/default_chunks.h); all checkpoint modes; all schedules that give the same bits,
  // and a searched one ("search"); 1, 2 and 4 stages on a device.
  TORCH_ARG(std::vector<int64_t>, chunks) = {};
  TORCH_ARG(std::vector<Checkpoint>, checkpoints) = {};
  TORCH_ARG(std::vector<std::string>, schedules) = {};
  TORCH_ARG(std::vector<int64_t>, stages_per_device) = {1, 2, 4};

  // Makes the same model, for a plan of its memory; called while a MetaScope lives. Default: none.
  // A model on the meta device is planned as it is; the memory of one elsewhere is then only
  // predicted from its profile.
  TORCH_ARG(std::function<torch::nn::Sequential()>, make) = nullptr;
  // As in GPipeImpl::step, for that plan: the loss counts. Default: no targets, and the sum of the
  // first output.
  TORCH_ARG(Tensors, targets) = {};
  TORCH_ARG(LossFn, loss) = nullptr;
  // As in GPipeOptions.
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};
  TORCH_ARG(bool, deferred_batch_norm) = false;
  // As in MemoryPlanOptions. On CPUs what is live must fit; on CUDA devices what LibTorch's
  // allocator reserves.
  TORCH_ARG(MakeOptimizer, optimizer) = nullptr;
  TORCH_ARG(bool, zero_grad) = true;
  TORCH_ARG(c10::DeviceType, device_type) = c10::kCUDA;

  // The devices' speed, for a model on the meta device, whose times are counted. Their type is
  // `device_type`.
  TORCH_ARG(NominalDevice, speed) = {};
  // How a model elsewhere is measured, for each size of micro-batches: as in ProfileOptions.
  TORCH_ARG(double, timeout) = 1.0;
  TORCH_ARG(int64_t, cpu_threads) = 0;
  // Profiles that are there already, and are taken where a micro-batch has as many rows. All others
  // are made. Default: none.
  TORCH_ARG(std::vector<Profile>, profiles) = {};

  // The machine: bandwidth, latency, overhead, cores and contention count.
  TORCH_ARG(ExplainOptions, machine) = {};

  // As PlanProblem::budget, for each search: up to six more correct what the profile says of
  // memory.
  TORCH_ARG(int64_t, budget) = 0;
  // Default: none.
  TORCH_ARG(PlanNote, progress) = nullptr;
};

// A plan, and why it is the one. A value type.
struct PlanReport {
  PipelinePlan plan;
  std::vector<PlanCandidate> others;  // the next best, ten at most, the fastest first
  std::vector<PlanAlternative> alternatives;
  PlanProof proof;
  Explanation explanation;             // of the choice
  std::vector<Uncertainty> uncertain;  // of its memory
  bool memory_planned = false;         // if not, memory is predicted from the profile
  int64_t rows_of_profile = 0;         // of a micro-batch
  int64_t examined = 0;                // predictions
  bool exhaustive = false;             // all cuts and modes of all settings were among them
  int64_t memory_plans = 0;
};

// Plans the training of `model` on mini-batches like `sample`, the tensors that GPipeImpl::step is
// given. On the meta device times are counted (balance/costs/flops.h) and say only which choice is
// faster; elsewhere they are measured, layer by layer (balance/costs/profiler.h), on one device.
//
// The choice is the fastest of what was examined, as predicted by explain(); it keeps the limits as
// memory_plan() counts. PlanReport::proof has no problems, or this throws std::logic_error.
//
// Profiles and memory are those of the caller's guard of autocast, if there is one for
// `device_type`.
//
// Takes seconds, and what it measures: for each number of micro-batches a profile. Deterministic
// for the same profiles.
//
// Throws c10::ValueError if nothing fits, with the nearest that works; for options out of range,
// and for a profile that was made under another guard of autocast, or with batch norms deferred
// where the options have them not, or the other way; std::invalid_argument for choices that make no
// sense; and as profile(), profile_on_meta() and memory_plan() do.
//
// Example:
//   PlanReport report = plan(model, {images}, PlanOptions(8).memory(22 * gib));
//   GPipe pipe(model, pipe_options(report.plan));                  // balance/choose/plan_options.h
//   pipe->step({images}, {targets}, loss, step_options(report.plan));
PlanReport plan(const torch::nn::Sequential& model, const Tensors& sample,
                const PlanOptions& options);

// For people, in at most 100 columns: the choice, the next best, what each setting alone is worth,
// and the proof. And for programs, with the plan as plan_to_json() has it.
std::string to_text(const PlanReport& report);
std::string to_json(const PlanReport& report);

// "1.50 GiB", never less than it is; "900 bytes".
std::string bytes_text(int64_t bytes);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_H_
