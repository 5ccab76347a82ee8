// Profiler: measures what each layer of a model costs, in time and in memory.
//
// The code of the pipeline's stages measures itself: each layer runs as a stage of its own, all of
// them on one worker, so what works in a pipeline can be profiled, and a time has in it what a
// stage costs. docs/design/balance.md says more.
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

// In seconds, for one micro-batch.
struct LayerTimes {
  double forward = 0;
  double backward = 0;
};

// How far a measurement of times is.
struct TimeProgress {
  int64_t passes = 0;  // measured so far
  double seconds = 0;  // that they took together
  double timeout = 0;  // TimeOptions::timeout
};
using TimeProgressFn = std::function<void(const TimeProgress&)>;

// For every function here:
//
// `sample` is one micro-batch of the model's inputs, as a pipeline would get it, on the model's own
// device. Its values matter only if the model's costs depend on them. An input that requires a
// gradient has the first layer compute one.
//
// A model is profiled in training mode, without recompute. Afterwards it is exactly as before, also
// if a layer throws: parameters, their gradients, buffers, modes, and the state of the generators
// of random numbers; gradients are taken off meanwhile. (Not undone: what a layer registers or
// keeps in members of its own, and gradients of tensors that no layer has registered.) That takes
// memory for a copy of parameters and buffers.
//
// Layers of which the later one takes what cannot travel between stages (see GPipe), and those of
// keep_together, are measured together: the first of them has the cost of all. A model that cannot
// be cut at some place for another reason (an in-place layer behind it changes what is also a skip)
// is refused, unless keep_together has the layers on both sides.
//
// Layers run under the caller's guard of autocast for devices of the model's type, or as layers
// enable it. On the meta device that is the autocast of what meta tensors stand for: the type of a
// MetaAutocastScope (meta/meta_autocast.h), otherwise meta_target(). A Profile says which.
//
// The layers really run, in a profile of times dozens of times: hooks on modules' tensors and on
// parameters are called in each pass, with gradients of ones from behind. Take off those that
// count, log or write, or profile a model without them.
//
// Requirements: nobody else uses the model, or draws random numbers, meanwhile.
//
// Throws c10::ValueError for a model without layers, a sample without tensors or rows, tensors on
// several devices, options out of range, under torch::InferenceMode; what GPipe's constructor does
// for a model that cannot be in a pipeline; and what a layer throws, with the layer in the message.

// How times are measured, and what balance_by_time() makes of them.
struct TimeOptions {
  // Seconds after which no further pass over the model begins: above 0, finite. At least three
  // passes are measured, and one before them is not. Default: 1.
  TORCH_ARG(double, timeout) = 1.0;

  // How many of the sample's first rows are the micro-batch. Default: 0, all of them.
  TORCH_ARG(int64_t, micro_batch_rows) = 0;
  // As in GPipeOptions: the tensors of the sample that all micro-batches have whole.
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};

  // The intra-op threads of a layer on the CPU, at most 1024. Default: 0, for balance_by_time() an
  // equal share of the calling thread's for each partition, and otherwise all of them.
  TORCH_ARG(int64_t, cpu_threads) = 0;

  // Called after each measured pass, on the calling thread. What it throws ends the measurement.
  // Default: none.
  TORCH_ARG(TimeProgressFn, progress) = nullptr;

  // Layers of which no two neighbors may be separated. Default: none.
  TORCH_ARG(std::vector<LayerRange>, keep_together) = {};

  // As in GPipeOptions: forwards then also gather what the running statistics are updated with.
  TORCH_ARG(bool, deferred_batch_norm) = false;

  // The rest is for balance_by_time().

  // Whether partitions will recompute (Checkpoint::kAlways, and kExceptLast nearly so): a layer's
  // cost is then two forwards and a backward. Default: false.
  TORCH_ARG(bool, recompute) = false;

  // By partition: how long its device takes for what takes the profiled one 1 second. See
  // PartitionOptions. Default: 1 for all.
  TORCH_ARG(std::vector<double>, slowness) = {};
};

// The medians over several passes, by layer. The model is not on the meta device.
//
// Example:
//   for (const LayerTimes& layer : profile_times(model, torch::rand({8, 3, 224, 224}))) ...
std::vector<LayerTimes> profile_times(const torch::nn::Sequential& model, const at::Tensor& sample,
                                      const TimeOptions& options = {});
std::vector<LayerTimes> profile_times(const torch::nn::Sequential& model, const Tensors& sample,
                                      const TimeOptions& options = {});

// What a parameter takes in training, in units of its own bytes: itself, its gradient, and what
// LibTorch's optimizers keep for it.
struct ParamScale {
  static constexpr double kInference = 1;
  static constexpr double kSgd = 2;
  static constexpr double kSgdMomentum = 3;
  static constexpr double kAdam = 4;  // AdamW, too
  static constexpr double kAmsgrad = 5;
  static constexpr double kAdagrad = 3;
  static constexpr double kRmsprop = 3;
  static constexpr double kRmspropMomentum = 4;
  static constexpr double kRmspropCentered = 4;
  static constexpr double kRmspropCenteredMomentum = 5;
};

// What balance_by_size() and profile_sizes() count.
struct SizeOptions {
  // How many micro-batches' activations a stage keeps at once: with fill-drain (GPipe::forward, and
  // step with Schedule::gpipe) all of a mini-batch; with 1F1B stage j of p keeps p - j at most, so
  // about half the number of partitions on average; with checkpoints about 1. At least 1.
  // Default: 1.
  TORCH_ARG(int64_t, chunks) = 1;

  // Bytes for each byte of parameters: see ParamScale. At least 0, finite. Default: 2, the
  // parameter and its gradient.
  TORCH_ARG(double, param_scale) = ParamScale::kSgd;

  // How many of the sample's first rows are the micro-batch. Default: 0, all of them.
  TORCH_ARG(int64_t, micro_batch_rows) = 0;
  // As in GPipeOptions: the tensors of the sample that all micro-batches have whole.
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};

  // Layers of which no two neighbors may be separated. Default: none.
  TORCH_ARG(std::vector<LayerRange>, keep_together) = {};

  // As in TimeOptions.
  TORCH_ARG(bool, deferred_batch_norm) = false;
};

// The bytes of each layer: parameters x param_scale + kept x chunks, where `kept` is what the layer
// takes in the forward of the micro-batch and what is still in use when backward begins (see
// LayerProfile). Tied parameters count at the first layer that has them.
//
// The model is on the CPU or on the meta device (gpipe::MetaScope builds it there), where a model
// of any size is measured without memory; operators and meta devices that LibTorch lacks there are
// installed (meta/meta_kernels.h, meta/meta_devices.h). Bytes are much the same on other devices.
//
// Throws std::logic_error if another measurement of sizes runs in this process.
std::vector<int64_t> profile_sizes(const torch::nn::Sequential& model, const at::Tensor& sample,
                                   const SizeOptions& options = {});
std::vector<int64_t> profile_sizes(const torch::nn::Sequential& model, const Tensors& sample,
                                   const SizeOptions& options = {});

struct ProfileOptions {
  // Whether the halves of a split backward are measured, too: for each pass one more. If not,
  // LayerProfile::split is not set. Default: true.
  TORCH_ARG(bool, split) = true;

  // As in TimeOptions.
  TORCH_ARG(double, timeout) = 1.0;
  TORCH_ARG(int64_t, micro_batch_rows) = 0;
  TORCH_ARG(std::vector<int64_t>, shared_inputs) = {};
  TORCH_ARG(int64_t, cpu_threads) = 0;
  TORCH_ARG(TimeProgressFn, progress) = nullptr;
  TORCH_ARG(std::vector<LayerRange>, keep_together) = {};
  TORCH_ARG(bool, deferred_batch_norm) = false;

  // Called when a layer has run, forward or backward, in every pass, by one thread at a time. What
  // it throws ends the profile, so it can look for Ctrl-C. Default: none.
  TORCH_ARG(std::function<void()>, after_each_layer) = nullptr;
};

// All of a Profile. On the meta device times are 0; on devices other than that, the CPU and CUDA
// `kept`, `workspace` and `waiting` are 0.
Profile profile(const torch::nn::Sequential& model, const at::Tensor& sample,
                const ProfileOptions& options = {});
Profile profile(const torch::nn::Sequential& model, const Tensors& sample,
                const ProfileOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PROFILER_H_
