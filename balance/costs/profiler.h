// Profiler: measures what each layer of a model costs, in time and in memory.
//
// Each layer runs as a stage of its own, all of them on one worker, by the code of the pipeline's
// stages. So every model that runs in a pipeline can be profiled, and the times include a stage's
// overhead. docs/design/balance.md says more.
#ifndef BALANCE_COSTS_PROFILER_H_
#define BALANCE_COSTS_PROFILER_H_

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/cut/partition.h"
#include "gpipe/options.h"

namespace gpipe::balance {

// Seconds for one micro-batch.
struct LayerTimes {
  double forward = 0;
  double backward = 0;
};

// The progress of a measurement of times.
struct TimeProgress {
  int64_t passes = 0;  // measured passes so far
  double seconds = 0;  // total seconds of those passes
  double timeout = 0;  // TimeOptions::timeout
};
using TimeProgressFn = std::function<void(const TimeProgress&)>;

// The following holds for every function of this header.
//
// `sample` is one micro-batch of the model's inputs, as a pipeline would get it, on the model's own
// device. Its values matter only if the model's costs depend on them. If an input requires a
// gradient, the first layer computes it.
//
// A model is profiled in training mode, without recomputation. Its state is restored afterwards,
// also if a layer throws: parameters, their gradients, buffers, modes, and the states of random
// number generators. Not restored are what a layer registers or keeps in members of its own, and
// gradients of tensors that no layer has registered. The copy of parameters and buffers takes
// memory.
//
// Layers are measured together if a later one takes what cannot travel between stages (see GPipe),
// or if keep_together joins them: the first of them has the cost of all. A model that cannot be cut
// somewhere for another reason is refused, unless keep_together joins the layers on both sides. An
// example is an in-place layer behind the cut that changes a tensor that is also a skip.
//
// Layers run under the caller's autocast guard for devices of the model's type, or as layers enable
// it themselves. On the meta device the guard is that of the devices that meta tensors stand for:
// the type of a MetaAutocastScope (meta/meta_autocast.h), otherwise meta_target(). A Profile names
// its guard.
//
// The layers really run, for times dozens of times. Hooks on tensors of modules and on parameters
// are called in each pass, and the last outputs get gradients of ones. Remove hooks that count, log
// or write, or profile a model without them.
//
// Requirements: nothing else uses the model or draws random numbers meanwhile.
//
// Throws c10::ValueError for a model without layers, a sample without tensors or rows, tensors on
// several devices, options out of range, and under torch::InferenceMode. Throws as GPipe's
// constructor does for a model that cannot run in a pipeline. Passes on what a layer throws, with
// the layer in the message.

// Options of time measurements and of balance_by_time().
struct TimeOptions {
  // Seconds after which no further pass over the model begins: above 0, finite. One pass runs
  // unmeasured, then at least three are measured. Default: 1.
  TORCH_ARG(double, timeout) = 1.0;

  // The number of the sample's first rows that make the micro-batch. Default: 0, all of them.
  TORCH_ARG(int64_t, micro_batch_rows) = 0;
  // As in GPipeOptions: the tensors of the sample that all micro-batches share.
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};

  // The intra-op threads of a layer on the CPU, at most 1024. Default: 0, which means an equal
  // share of the calling thread's number for each partition in balance_by_time(), and otherwise all
  // of them.
  TORCH_ARG(int64_t, cpu_threads) = 0;

  // Called after each measured pass, on the calling thread. An exception that it throws ends the
  // measurement. Default: none.
  TORCH_ARG(TimeProgressFn, progress) = nullptr;

  // Ranges of layers that must not be separated. Default: none.
  TORCH_ARG(std::vector<LayerRange>, keep_together) = {};

  // As in GPipeOptions: forwards then also gather moments for the running statistics.
  TORCH_ARG(bool, deferred_batch_norm) = false;

  // The options below are for balance_by_time() only.

  // Whether partitions will recompute, as with Checkpoint::kAlways and nearly so with kExceptLast.
  // The cost of a layer is then two forwards and a backward. Default: false.
  TORCH_ARG(bool, recompute) = false;

  // [partition] The seconds that the partition's device takes for one second of work on the
  // profiled device. See PartitionOptions. Default: 1 for all.
  TORCH_ARG(std::vector<double>, slowness) = {};
};

// Returns the medians over several passes, for each layer. The model must not be on the meta
// device.
//
// Example:
//   for (const LayerTimes& layer : profile_times(model, torch::rand({8, 3, 224, 224}))) ...
std::vector<LayerTimes> profile_times(const torch::nn::Sequential& model, const at::Tensor& sample,
                                      const TimeOptions& options = {});
std::vector<LayerTimes> profile_times(const torch::nn::Sequential& model, const Tensors& sample,
                                      const TimeOptions& options = {});

// The bytes that training needs for each byte of a parameter: the parameter, its gradient, and what
// LibTorch's optimizers keep for it.
struct ParamScale {
  static constexpr double kInference = 1;
  static constexpr double kSgd = 2;
  static constexpr double kSgdMomentum = 3;
  static constexpr double kAdam = 4;  // also AdamW
  static constexpr double kAmsgrad = 5;
  static constexpr double kAdagrad = 3;
  static constexpr double kRmsprop = 3;
  static constexpr double kRmspropMomentum = 4;
  static constexpr double kRmspropCentered = 4;
  static constexpr double kRmspropCenteredMomentum = 5;
};

// Options of balance_by_size() and profile_sizes().
struct SizeOptions {
  // The number of micro-batches whose activations a stage keeps at once. With fill-drain
  // (GPipe::forward, and step with Schedule::gpipe) these are all micro-batches of a mini-batch.
  // With 1F1B stage j of p keeps at most p - j, so about half the number of partitions on average.
  // With checkpoints about 1. At least 1. Default: 1.
  TORCH_ARG(int64_t, chunks) = 1;

  // Bytes for each byte of a parameter: see ParamScale. At least 0, finite. Default: 2, the
  // parameter and its gradient.
  TORCH_ARG(double, param_scale) = ParamScale::kSgd;

  // The number of the sample's first rows that make the micro-batch. Default: 0, all of them.
  TORCH_ARG(int64_t, micro_batch_rows) = 0;
  // As in GPipeOptions: the tensors of the sample that all micro-batches share.
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};

  // Ranges of layers that must not be separated. Default: none.
  TORCH_ARG(std::vector<LayerRange>, keep_together) = {};

  // As in TimeOptions.
  TORCH_ARG(bool, deferred_batch_norm) = false;
};

// Returns the bytes of each layer: parameters x param_scale + kept x chunks. `kept` is what the
// layer's forward takes for the micro-batch and what is still in use when the backward begins (see
// LayerProfile). Tied parameters count at the first layer that has them.
//
// The model is on the CPU or on the meta device (gpipe::MetaScope builds it there). A model of any
// size can be measured on meta without memory. Operators and device functions that LibTorch lacks
// on meta are installed (meta/meta_kernels.h, meta/meta_devices.h). Other devices need about the
// same bytes.
//
// Throws std::logic_error if another measurement of sizes runs in this process.
std::vector<int64_t> profile_sizes(const torch::nn::Sequential& model, const at::Tensor& sample,
                                   const SizeOptions& options = {});
std::vector<int64_t> profile_sizes(const torch::nn::Sequential& model, const Tensors& sample,
                                   const SizeOptions& options = {});

struct ProfileOptions {
  // Whether to measure the halves of a split backward, too, which takes a second pass for each
  // pass. If false, LayerProfile::split is not set. Default: true.
  TORCH_ARG(bool, split) = true;

  // As in TimeOptions.
  TORCH_ARG(double, timeout) = 1.0;
  TORCH_ARG(int64_t, micro_batch_rows) = 0;
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};
  TORCH_ARG(int64_t, cpu_threads) = 0;
  TORCH_ARG(TimeProgressFn, progress) = nullptr;
  TORCH_ARG(std::vector<LayerRange>, keep_together) = {};
  TORCH_ARG(bool, deferred_batch_norm) = false;

  // Called after each forward or backward of a layer in every pass, by one thread at a time. An
  // exception that it throws ends the profile, for example after Ctrl-C. Default: none.
  TORCH_ARG(std::function<void()>, after_each_layer) = nullptr;
};

// Measures a whole Profile. On the meta device times are 0. On devices other than meta, the CPU and
// CUDA, `kept`, `workspace` and `waiting` are 0.
Profile profile(const torch::nn::Sequential& model, const at::Tensor& sample,
                const ProfileOptions& options = {});
Profile profile(const torch::nn::Sequential& model, const Tensors& sample,
                const ProfileOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PROFILER_H_
