// diagnose: why training is slow in a pipeline, and what to change.
//
// diagnose() runs the pipeline for some steps, the plain model, and the layers one by one. It says
// where the time goes, and predicts what other options would gain. docs/guide/19-why-is-it-slow.md
// shows how to read a diagnosis; docs/design/diagnose.md explains how it is made, and how good the
// predictions are.
#ifndef DIAGNOSE_DIAGNOSE_H_
#define DIAGNOSE_DIAGNOSE_H_

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "balance/cut/partition.h"
#include "diagnose/diagnosis.h"
#include "gpipe/gpipe.h"
#include "gpipe/options.h"
#include "gpipe/setup.h"  // IWYU pragma: export

namespace gpipe {

struct DiagnoseOptions {
  // The steps to be diagnosed, above all their schedule. An observer in it is not called.
  // Default: StepOptions().
  TORCH_ARG(StepOptions, step) = {};

  // Seconds of each measurement (there are about ten): above 0, finite. Measurements run in turns,
  // each at least three times. Default: 1.
  TORCH_ARG(double, seconds) = 1.0;

  // Numbers of micro-batches to choose from, each at least 1. A number with which a layer throws,
  // as batch norms do for a single row, is left out. Default: 1, 2, 4, ..., up to 8 for each
  // partition, and at most the rows of the mini-batch.
  TORCH_ARG(std::vector<int64_t>, chunks) = {};

  // Schedules to choose from. Default: the named schedules (gpipe/schedule/named_schedule.h) that
  // the pipeline takes as it is: with a stage on each worker, or as its placement has them. Two
  // kinds are left out: Schedule::gpipe, because it gives other bits and is as fast as
  // "fill-drain", and schedules that need a search of more than about a second.
  TORCH_ARG(std::vector<ScheduleChoice>, schedules) = {};

  // Ranges of layers within which no cut is allowed. They must leave at least one piece for each
  // partition. Default: none.
  TORCH_ARG(std::vector<balance::LayerRange>, keep_together) = {};

  // The most bytes of each worker, for all of its partitions together: nothing that is predicted to
  // take more is advised. Default: 0, no limit.
  TORCH_ARG(int64_t, memory_limit) = 0;

  // The memory for a parameter, in units of its own bytes: see balance::ParamScale. From 0 to 10^6.
  // Default: 2, the parameter and its gradient.
  TORCH_ARG(double, param_scale) = 2.0;

  // The CPU's cores, for partitions there. If a number is given, other load on this machine is not
  // checked. Default: 0, the cores that this process may use.
  TORCH_ARG(int64_t, cpu_cores) = 0;

  // Whether the plain model runs the whole mini-batch at once on the first device, which needs
  // enough memory. If not, or if it runs out of memory, a step is compared with the same
  // micro-batches one after another, and fewer micro-batches are not advised.
  // Default: true.
  TORCH_ARG(bool, run_plain_model) = true;

  // Called before each part of the measurements with its name ("steps", "layers, 4 rows"), the
  // number of parts that are done, and the number of all parts. If it throws, the diagnosis ends.
  // Default: none.
  using Progress = std::function<void(const std::string& what, int64_t done, int64_t all)>;
  TORCH_ARG(Progress, progress) = nullptr;

  // Called between steps, between passes over the layers, and between the setups that are tried. If
  // it throws, after Ctrl-C say, the diagnosis ends; it is called so often that this happens soon.
  // Default: none.
  using Check = std::function<void()>;
  TORCH_ARG(Check, check) = nullptr;
};

// Diagnoses steps of `pipe`, as its step() would run them, in training mode.
//
// Afterwards pipeline and model are exactly as before, also if something throws: parameters,
// gradients, buffers, modes, generators of random numbers. Gradients are taken off meanwhile. (Not
// undone are what a layer registers or keeps in members of its own, and gradients of tensors that
// no layer has registered, for example the parameters of a loss function.) Inputs and targets get
// no gradients. This takes memory for a copy of parameters and buffers; and where partitions have
// several devices, the whole model is on the first of them meanwhile.
//
// Requirements: no other thread uses the model, or draws random numbers, meanwhile. Nothing else
// computes on the machine, or the times mean little: if other work had the cores, or the times
// contradict each other, Diagnosis::warning says so, and there is no advice.
//
// The parts and predictions are those of a pipeline with copy streams, whatever
// Ablation::copy_streams of `pipe` is: the additional time of a pipeline without them is in its
// overhead. So is the cost of skips that go from stage to stage (direct_skips = false), if no skip
// of the present cut passes a stage.
//
// Throws c10::ValueError for options out of range, for a pipeline without layers or on the meta
// device, and for everything that step() refuses (no rows, a schedule that does not fit, a loss
// that needs no gradient) or balance::profile() refuses. Exceptions of layers are passed on.
//
// Example:
//   gpipe::Diagnosis diagnosis = gpipe::diagnose(pipe, {input}, {target}, loss_fn);
//   std::cout << to_text(diagnosis);  // diagnose/diagnosis_text.h
//   if (!diagnosis.advice.empty()) {  // the largest gain first
//     const gpipe::PipelineSetup& better = diagnosis.advice.front().setup;
//     gpipe::GPipe faster(model, gpipe::pipe_options(better));  // gpipe/setup.h
//     faster->step({input}, {target}, loss_fn, gpipe::step_options(better));
//   }
Diagnosis diagnose(GPipe pipe, const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                   const DiagnoseOptions& options = {});

}  // namespace gpipe

#endif  // DIAGNOSE_DIAGNOSE_H_
