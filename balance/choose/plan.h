// plan: how to train a model on given devices: balance, placement, micro-batches, checkpoints and
// schedule, chosen together.
//
// docs/guide/20-which-schedule.md shows it; docs/design/planner.md explains the search.
#ifndef BALANCE_CHOOSE_PLAN_H_
#define BALANCE_CHOOSE_PLAN_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <optional>
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

// A callback that plan() calls before each of its parts and during them, from one thread at a time.
// An exception that it throws ends the planning. `note` says what plan() is doing.
using PlanNote = std::function<void(const std::string& note)>;

struct PlanOptions {
  // The number of devices. All are alike, and each gets at least one layer.
  PlanOptions(int64_t devices) : devices_(devices) {}  // NOLINT: implicit
  TORCH_ARG(int64_t, devices);
  // The bytes of each device. Default: 0, no limit.
  TORCH_ARG(int64_t, memory) = 0;

  // What to choose from. Default: the numbers of micro-batches of default_chunks()
  // (balance/choose/default_chunks.h), all checkpoint modes, all schedules that give the same bits
  // and a searched one ("search"), and 1, 2 or 4 stages on a device.
  TORCH_ARG(std::vector<int64_t>, chunks) = {};
  TORCH_ARG(std::vector<Checkpoint>, checkpoints) = {};
  TORCH_ARG(std::vector<std::string>, schedules) = {};
  TORCH_ARG(std::vector<int64_t>, stages_per_device) = {1, 2, 4};

  // Makes the same model again, to plan its memory; it is called inside a MetaScope. Default: none.
  // A model on the meta device is planned as it is and does not need this. The memory of any other
  // model is only predicted from its profile if `make` is not given.
  TORCH_ARG(std::function<torch::nn::Sequential()>, make) = nullptr;
  // As in GPipeImpl::step, for the plan of the memory, in which the loss counts. Default: no
  // targets, and the sum of the first output.
  TORCH_ARG(Tensors, targets) = {};
  TORCH_ARG(LossFn, loss) = nullptr;
  // As in GPipeOptions.
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};
  TORCH_ARG(bool, deferred_batch_norm) = false;
  // As in MemoryPlanOptions. On CPUs the live bytes must fit, on CUDA devices the bytes that
  // LibTorch's allocator reserves.
  TORCH_ARG(MakeOptimizer, optimizer) = nullptr;
  TORCH_ARG(bool, zero_grad) = true;
  TORCH_ARG(c10::DeviceType, device_type) = c10::kCUDA;

  // The speed of the devices, for a model on the meta device, whose times are counted. The type of
  // the devices is `device_type`.
  TORCH_ARG(NominalDevice, speed) = {};
  // How a model that is not on the meta device is measured, for each size of micro-batches: as in
  // ProfileOptions.
  TORCH_ARG(double, timeout) = 1.0;
  TORCH_ARG(int64_t, cpu_threads) = 0;
  // Profiles that exist already. One is used if its number of rows is that of a micro-batch;
  // missing ones are made. Default: none.
  TORCH_ARG(std::vector<Profile>, profiles) = {};

  // The machine. Only bandwidth, latency, host_bandwidth, overhead, cores, contention and
  // keep_together are used. With a host_bandwidth activations may wait on the host
  // (gpipe/schedule/offloads.h) where a faster choice fits then, or nothing without. No action
  // waits for them. Devices that share a link to the host get equal parts of its bandwidth. Needs
  // `make` or a model on the meta device.
  TORCH_ARG(ExplainOptions, machine) = {};
  // Offloads make the memory of the choice as low as they can, although it fits without, and its
  // step at most so much longer (0.05: 5 %). A faster choice that fits only with offloads is then
  // not looked for. If nothing fits without, the steps of all choices may be so much longer. Needs
  // a host_bandwidth. Default: offloads are for what does not fit.
  TORCH_ARG(std::optional<double>, least_memory) = std::nullopt;

  // The most bytes of the host's pinned memory for the offloads of each stage, as memory_plan()
  // counts them. Needs a host_bandwidth. Default: 0, no limit.
  TORCH_ARG(int64_t, host_memory) = 0;

  // As PlanProblem::budget, for each search. There are up to six more searches, which correct what
  // the profile says of memory.
  TORCH_ARG(int64_t, budget) = 0;
  // Called during the planning, see PlanNote. Default: none.
  TORCH_ARG(PlanNote, progress) = nullptr;
};

// A plan, with the reasons for it. A value type.
struct PlanReport {
  PipelinePlan plan;
  std::vector<PlanCandidate> others;  // the next best, ten at most, the fastest first
  std::vector<PlanAlternative> alternatives;
  PlanProof proof;
  Explanation explanation;             // predictions for the chosen plan
  std::vector<Uncertainty> uncertain;  // about the chosen plan's memory
  bool memory_planned = false;         // if false, memory is predicted from the profile
  int64_t rows_of_profile = 0;         // rows of a micro-batch
  int64_t examined = 0;                // number of predictions
  bool exhaustive = false;             // true: all cuts and modes of all settings were predicted
  int64_t memory_plans = 0;
  // [stage] The bytes of pinned memory of the host that its offloads need. Empty: the plan has no
  // offloads, or its memory was not planned.
  std::vector<int64_t> pinned;
  // Why the plan has no offloads, although a host_bandwidth was given. Empty otherwise.
  std::string no_offloads;
};

// Plans the training of `model` on mini-batches like `sample`, the tensors that GPipeImpl::step
// takes. On the meta device times are counted (balance/costs/flops.h) and only tell which choice is
// faster. Elsewhere they are measured on one device, layer by layer (balance/costs/profiler.h).
//
// The result is the choice with the shortest step of all that were examined, as explain() predicts,
// and it keeps the memory limits as memory_plan() counts. PlanReport::proof has no problems,
// otherwise plan() throws std::logic_error.
//
// Profiles and memory are those under the caller's autocast guard for `device_type`, if there is
// one.
//
// Takes seconds, plus the time of one profile for each number of micro-batches. Deterministic for
// the same profiles.
//
// Throws c10::ValueError if nothing fits, and names the nearest choice that would; for options out
// of range and choices that make no sense; and for a profile that was made under another autocast
// guard or with another value of deferred_batch_norm. Throws as profile(), profile_on_meta() and
// memory_plan() do. Passes on what the progress callback throws.
//
// Example:
//   PlanReport report = plan(model, {images}, PlanOptions(8).memory(22 * gib));
//   GPipe pipe(model, pipe_options(report.plan));                  // balance/choose/plan_options.h
//   pipe->step({images}, {targets}, loss, step_options(report.plan));
PlanReport plan(const torch::nn::Sequential& model, const Tensors& sample,
                const PlanOptions& options);

// The report for people, in at most 80 columns: the choice, the next best, what each setting alone
// is worth, and the proof. to_json() gives the same for programs, with the plan as in
// plan_to_json().
std::string to_text(const PlanReport& report);
std::string to_json(const PlanReport& report);

// The number of bytes as text, like "1.50 GiB", rounded up, or "900 bytes" below 1 MiB.
std::string bytes_text(int64_t bytes);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_H_
