// GPipeOptions and StepOptions: the options of a pipeline and of one training step, and the step's
// result.
#ifndef GPIPE_OPTIONS_H_
#define GPIPE_OPTIONS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/ablation.h"
#include "gpipe/checkpoint.h"
#include "gpipe/loss_fn.h"
#include "gpipe/out_of_memory.h"
#include "gpipe/placement.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/schedule/default_schedule.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/world.h"

namespace gpipe {

// How a pipeline is built.
//
// Example:
//   GPipeOptions({2, 2}).devices({torch::kCUDA, torch::Device("cuda:1")}).chunks(8)
struct GPipeOptions {
  // `balance`: how many consecutive layers each partition has; it sums up to the number of layers.
  GPipeOptions(std::vector<int64_t> balance) : balance_(std::move(balance)) {}  // NOLINT: implicit

  TORCH_ARG(std::vector<int64_t>, balance);

  // The device of each partition. Surplus devices are dropped, and one may be listed several times.
  // Default: every CUDA device in order; without CUDA devices, the CPU for all partitions.
  // Over processes (`world`): one device for all partitions of this process, or one for each
  // partition of the model. Devices of partitions in other processes are ignored. All processes
  // have the same type of device. Default there: the CPU.
  TORCH_ARG(std::vector<c10::Device>, devices) = {};

  // Into how many micro-batches a mini-batch is cut, along dimension 0 of every input.
  // Default: 1.
  TORCH_ARG(int64_t, chunks) = 1;

  // Which inputs, by their numbers, are the same for all micro-batches and not cut: a mask of one
  // row, say, or a table of positions. They need not have the mini-batch's rows, nor any dimension;
  // other inputs tell how many rows it has. A gradient into one is the sum over the micro-batches,
  // in ascending order. Layers must not change them in place, and the model must not return them.
  // Default: none.
  //   // step({x, mask}, ...), mask of shape {T, T}
  //   GPipeOptions({2, 2}).chunks(8).shared_inputs({1})
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};

  // Which micro-batches recompute their activations in backward (in training mode only).
  // Default: kExceptLast.
  TORCH_ARG(Checkpoint, checkpoint) = Checkpoint::kExceptLast;

  // The mode of each partition, for when memory is short in some of them only. Replaces
  // `checkpoint`.
  // Default: none; `checkpoint` holds for all.
  TORCH_ARG(std::vector<Checkpoint>, partition_checkpoints) = {};

  // Whether batch norms update their running statistics once per mini-batch, as if they had seen it
  // as a whole, instead of once per micro-batch.
  // Default: false.
  TORCH_ARG(bool, deferred_batch_norm) = false;

  // Which worker (a thread) runs each stage: Placement::loop and v_shape for the schedules that
  // have several stages on a worker, say. The CPU's threads are then shared among the workers. A
  // schedule must match the placement, and the default schedule is default_schedule() of it.
  // Default: none. A step's schedule says where stages are, on as many workers as there are stages
  // or fewer; each worker then has one stage's share of the CPU's threads.
  TORCH_ARG(std::optional<Placement>, placement) = std::nullopt;

  // The processes over which the stages, or replicas of all of them, are spread:
  // docs/guide/24-processes.md. Placement::processes says which worker is in which process; without
  // it each process has one worker, and without a placement one stage. The stages of a process are
  // on one device, the CPU by default (`devices`).
  // Default: this process alone.
  TORCH_ARG(World, world) = World();

  // Into how many groups the micro-batches of a step are cut, to add up their gradients in an order
  // that does not depend on how many replicas there are (World::grid): within a group as they come,
  // then the groups in a fixed tree. So a run over replicas has the same bits as one without
  // replicas, if both have the same chunks and groups. `groups` must divide chunks and be a
  // multiple of the number of replicas; each replica must get 1, 2, 4, 8, ... groups. Gradients
  // then change only at the end of a step or, if it fails, not at all. Parameters' gradient hooks
  // see each micro-batch's gradient, and post-accumulate hooks run once. It costs the memory of up
  // to log2(groups) + 1 copies of the gradients. Only step() adds gradients up by groups, and its
  // schedule must be ascending (ScheduleFacts), as all except Schedule::gpipe are.
  // Default: 0, which means one group for each replica; without replicas, gradients are not
  // grouped: they are added to .grad as they come.
  TORCH_ARG(int64_t, groups) = 0;

  // Intra-op threads of each CPU stage, at most 1024.
  // Default: 0, an equal share of the caller's threads for each stage (with a placement: for each
  // worker).
  TORCH_ARG(int64_t, cpu_threads_per_stage) = 0;

  // Whether stages on CUDA devices record their forward and their backward as CUDA Graphs and
  // launch each as a whole, which saves the host's work per kernel. After a few plain runs a stage
  // records once for each shape (and once more for each micro-batch whose graph is alive at the
  // same time), and reuses that for every micro-batch. Results are bitwise those without graphs. A
  // stage that cannot be recorded runs without graphs, and logs the reason, once: see
  // GPipe::graph_use and docs/design/graphs.md. The layers' own code runs only while recording:
  // what a layer does on the host (counting its calls, say) happens only then, and a replay repeats
  // the kernels of the branches that were taken.
  // Default: false.
  TORCH_ARG(bool, graphs) = false;

  // Parts to leave out, for experiments.
  // Default: nothing is left out.
  TORCH_ARG(Ablation, ablation) = Ablation();
};

// How a loss function reduces the samples of a micro-batch to one number.
enum class LossReduction : uint8_t {
  kMean,  // over the samples, or over whatever StepOptions::weight counts
  kSum,
};

// How much a micro-batch counts in the mean over the mini-batch, from its targets: 0 or more.
using MicroBatchWeight = std::function<double(const Tensors& targets)>;

struct StepOptions {
  // Which action runs when, on which worker: any schedule that verify(Sends::kBuffered) accepts,
  // including one with several stages on a worker or with split backwards
  // (docs/guide/23-own-schedules.md). A fixed Schedule must have the pipeline's stages and the
  // mini-batch's number of micro-batches. A ScheduleGenerator adapts to every mini-batch; an empty
  // one gives the default. Default: Schedule::one_f_one_b; with GPipeOptions::placement,
  // default_schedule() of it.
  StepOptions& schedule(Schedule schedule) {
    schedule_ = std::move(schedule);
    generator_ = nullptr;
    return *this;
  }
  StepOptions& schedule(ScheduleGenerator generator) {
    generator_ = std::move(generator);
    schedule_.reset();
    return *this;
  }
  bool has_schedule() const { return schedule_.has_value() || generator_ != nullptr; }
  // The schedule for a mini-batch. Throws std::invalid_argument for counts below 1.
  Schedule schedule_for(int64_t stages, int64_t micro_batches) const {
    if (schedule_) return *schedule_;
    return generator_ ? generator_(stages, micro_batches)
                      : Schedule::one_f_one_b(stages, micro_batches);
  }
  // The same for a pipeline with a placement, which the schedule must match: throws
  // std::invalid_argument that lists the stages which are elsewhere.
  Schedule schedule_for(const Placement& placement, int64_t micro_batches) const {
    if (!schedule_ && !generator_) return default_schedule(placement, micro_batches);
    Schedule schedule = schedule_for(placement.stages(), micro_batches);
    schedule.check(placement);
    return schedule;
  }

  // Whether loss_fn gives a mean or a sum. The loss and the gradients of a step are then the mean,
  // or the sum, over the mini-batch, even if micro-batches differ in size. Default: kMean.
  TORCH_ARG(LossReduction, reduction) = LossReduction::kMean;

  // The weight over which the mean of a micro-batch is taken: the number of tokens that are not
  // padding, say, or the sum of the classes' weights. Called for every micro-batch before its first
  // forward. A micro-batch of weight 0 does not count, whatever its loss is. Without this option a
  // micro-batch of nothing but padding makes the loss NaN, the mean over nothing (a warning is
  // logged once), and the gradients wrong: those of cross_entropy are zeros there, those of sum /
  // number are NaN. Allowed with kMean only.
  //   // cross_entropy with ignore_index(-100) over (N, T) token ids
  //   StepOptions().weight([](const Tensors& targets) {
  //     return targets.at(0).ne(-100).sum().item<double>();
  //   })
  // Default: none, the number of rows.
  TORCH_ARG(MicroBatchWeight, weight) = nullptr;

  // What the gradients are multiplied by: where the backward of a micro-batch starts, not the loss,
  // which is reported as it is. For float16, whose small gradients would be zeros. GradScaler
  // (gpipe/grad_scaler.h) chooses it, and divides the gradients again. Positive and finite.
  // Default: 1.
  TORCH_ARG(double, loss_scale) = 1;

  // Whether the result holds the model's outputs, which costs the memory for them.
  // Default: false.
  TORCH_ARG(bool, keep_outputs) = false;

  // Whether the step looks for the first value that is NaN or infinite: in parameters and their
  // gradients before the step, in inputs, in what each layer hands on or stashes, in losses that
  // count, and in each gradient of the backward, also within a layer. It throws c10::ValueError
  // that names the layer, the micro-batch and the direction; last_failure() has them as values. It
  // is for finding an error, not for training: every check waits for the device. Layers that return
  // infinities on purpose are reported, too. Not allowed with GPipeOptions::graphs, which do not
  // run single layers.
  // Default: false.
  TORCH_ARG(bool, check_finite) = false;

  // Called at each action's begin and end (see gpipe/runtime/observer.h).
  // Default: none.
  TORCH_ARG(Observer, on_event) = nullptr;

 private:
  std::optional<Schedule> schedule_;
  ScheduleGenerator generator_;
};

// The result of a step, or of an evaluation.
struct StepResult {
  double loss = 0;  // the mini-batch's loss: see StepOptions::reduction
  Tensors outputs;  // detached, joined; empty unless StepOptions::keep_outputs
  // [micro-batch] What the loss function returned, also where its weight is 0
  // (StepOptions::weight).
  std::vector<double> losses = {};
};

// How a stage uses GPipeOptions::graphs.
struct GraphUse {
  int64_t recorded = 0;  // graphs, forward and backward, since the pipeline was made
  int64_t replayed = 0;  // how often one was launched
  std::string reason;    // why the stage runs without graphs; empty if nothing prevents them
};

// Where the last error in a layer happened.
struct Failure {
  int64_t stage = 0;
  int64_t micro_batch = 0;
  bool backward = false;   // in backward or its recompute
  bool recompute = false;  // in the recompute
  std::string layer;       // "layer 5 ('relu')", "the loss function", or "stage 1" if neither
  // The details of a c10::OutOfMemoryError, if the allocator gives them (CUDA's does).
  std::optional<OutOfMemory> out_of_memory = std::nullopt;
  std::string layer_type = {};  // "torch::nn::ReLUImpl"; empty if it was not a layer

  // Writes "forward of stage 1, micro-batch 3, layer 5 ('relu'), a torch::nn::ReLUImpl".
  friend std::ostream& operator<<(std::ostream& out, const Failure& failure);
};

}  // namespace gpipe

#endif  // GPIPE_OPTIONS_H_
