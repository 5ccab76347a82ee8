#include "balance/costs/profiler.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "balance/costs/autocast.h"
#include "balance/costs/first_rows.h"
#include "balance/costs/layer_memory.h"
#include "balance/costs/model_guard.h"
#include "gpipe/batch_size.h"
#include "gpipe/internal/layer_runs/layer_runs.h"
#include "gpipe/internal/model/registered.h"
#include "gpipe/timing.h"
#include "interception/allocations.h"
#include "meta/meta_autocast.h"
#include "meta/meta_devices.h"
#include "meta/meta_kernels.h"
#include "meta/meta_target.h"
#include "skip/verify.h"
#include "text/shown.h"

namespace gpipe::balance {
namespace {

using internal::Backwards;
using internal::LayerEvent;
using internal::LayerRuns;
using Seconds = std::chrono::duration<double>;

constexpr int64_t kLeastPasses = 3;
constexpr int64_t kMostThreads = 1024;  // as in GPipeOptions::cpu_threads_per_stage

void check_timeout(double timeout) {
  TORCH_CHECK_VALUE(std::isfinite(timeout) && timeout > 0,
                    "timeout must be a finite number of seconds above 0, got ", timeout);
}

void check_threads(int64_t threads) {
  TORCH_CHECK_VALUE(threads >= 0 && threads <= kMostThreads,
                    "cpu_threads must be 0 (as many as there are) or from 1 to ", kMostThreads,
                    ", got ", threads);
}

void check_model(const torch::nn::Sequential& model) {
  TORCH_CHECK_VALUE(!model.is_empty(), "the model is an empty module holder; give a Sequential");
  TORCH_CHECK_VALUE(!model->is_empty(), "the model has no layers, so there is nothing to profile");
  gpipe::internal::check_registered(model);
  skip::verify_skippables(model);  // also finds null pointers deeper down
}

// The layer in the words of messages, like "layer 3 ('conv')".
std::string layer_text(const torch::nn::Sequential& model, size_t layer) {
  return "layer " + std::to_string(layer) + " (" +
         text::in_quotes(model->named_children()[layer].key()) + ")";
}

// The device of the model and the sample.
c10::Device device_of(const torch::nn::Sequential& model, const Tensors& sample) {
  std::optional<c10::Device> device;
  std::string owner;  // the layer of the first tensor
  const auto children = model->named_children();
  for (size_t layer = 0; layer < children.size(); ++layer) {
    const auto check = [&](const std::string& name, const at::Tensor& tensor, const char* what) {
      if (!tensor.defined()) return;
      if (!device) {
        device = tensor.device();
        owner = layer_text(model, layer);
      }
      TORCH_CHECK_VALUE(tensor.device() == *device, "the ", what, " ", text::in_quotes(name),
                        " of ", layer_text(model, layer), " is on ", tensor.device(), ", but ",
                        owner, " is on ", *device,
                        "; a model is profiled on one device: move it there with model->to()");
    };
    for (const auto& p : children[layer].value()->named_parameters()) {
      check(p.key(), p.value(), "parameter");
    }
    for (const auto& b : children[layer].value()->named_buffers()) {
      check(b.key(), b.value(), "buffer");
    }
  }
  for (size_t k = 0; k < sample.size(); ++k) {
    if (!sample[k].defined()) continue;
    if (!device) device = sample[k].device();
    TORCH_CHECK_VALUE(sample[k].device() == *device, "tensor ", k, " of the sample is on ",
                      sample[k].device(), ", but the model is on ", *device,
                      "; move one of them with .to()");
  }
  return *device;
}

// The number of rows of the micro-batch.
int64_t rows_of(const Tensors& sample, int64_t micro_batch_rows,
                const std::vector<int64_t>& shared) {
  TORCH_CHECK_VALUE(!sample.empty(),
                    "the sample has no tensors; give one micro-batch of the model's inputs");
  const int64_t rows = batch_size(sample, "sample tensor", shared);
  TORCH_CHECK_VALUE(rows > 0, "the sample has 0 rows; give one micro-batch of the model's inputs");
  TORCH_CHECK_VALUE(
      micro_batch_rows >= 0 && micro_batch_rows <= rows,
      "micro_batch_rows must be 0 (all rows of the sample) or from 1 to the sample's ", rows,
      " rows, got ", micro_batch_rows);
  return micro_batch_rows == 0 ? rows : micro_batch_rows;
}

// [piece] The number of layers, for internal::LayerRuns.
std::vector<int64_t> pieces_of(const torch::nn::Sequential& model,
                               const std::vector<LayerRange>& keep_together) {
  const auto layers = static_cast<int64_t>(model->size());
  std::vector<bool> begins(layers + 1, false);
  int64_t first = 0;
  for (const int64_t piece : internal::pieces_of(model)) {
    begins[first] = true;
    first += piece;
  }
  for (size_t k = 0; k < keep_together.size(); ++k) {
    const LayerRange& range = keep_together[k];
    TORCH_CHECK_VALUE(range.first >= 0 && range.first <= range.last && range.last < layers,
                      "keep_together[", k, "] is layers ", range.first, " to ", range.last,
                      "; expected first <= last, both from 0 to ", layers - 1);
    for (int64_t layer = range.first + 1; layer <= range.last; ++layer) begins[layer] = false;
  }
  std::vector<int64_t> pieces;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (begins[layer]) pieces.push_back(0);
    ++pieces.back();
  }
  return pieces;
}

// A model that is being profiled, on its device. Its destructor restores the model.
class Subject {
 public:
  // Checks all arguments before it changes anything.
  template <typename Options>  // TimeOptions, SizeOptions or ProfileOptions
  Subject(const torch::nn::Sequential& model, const Tensors& sample, const Options& options,
          int64_t cpu_threads)
      : model_(checked(model)),
        shared_(options.shared_inputs()),
        rows_(rows_of(sample, options.micro_batch_rows(), shared_)),
        device_(prepared(device_of(model, sample))),
        runs_(model, device_, cpu_threads, pieces_of(model, options.keep_together()),
              options.deferred_batch_norm()),
        guard_(*model_, device_) {
    for (const at::Tensor& tensor : first_rows(sample, rows_, shared_)) {
      sample_.push_back(tensor.defined() ? tensor.detach() : tensor);
      needs_grad_.push_back(tensor.defined() && tensor.requires_grad());
    }
    model_->train();
    if (device_.is_meta() && !MetaAutocastScope::type()) autocast_.emplace(meta_target());
  }

  int64_t rows() const { return rows_; }
  c10::Device device() const { return device_; }
  const std::vector<int64_t>& pieces() const { return runs_.pieces(); }

  // Returns new tensors, which the first layer may change.
  Tensors inputs() const {
    const auto guard = on_device();
    Tensors inputs;
    for (size_t k = 0; k < sample_.size(); ++k) {
      inputs.push_back(sample_[k].defined() ? sample_[k].clone() : sample_[k]);
      if (needs_grad_[k]) inputs.back().set_requires_grad(true);
    }
    return inputs;
  }

  // Sets ProfileOptions::after_each_layer.
  void after_each_layer(std::function<void()> call) { after_each_layer_ = std::move(call); }

  void run(const internal::LayerObserver& observer, Backwards backwards = Backwards::kWhole) {
    if (!after_each_layer_) return runs_.run(inputs(), shared_, observer, backwards);
    runs_.run(
        inputs(), shared_,
        [&](const LayerEvent& event) {
          observer(event);
          if (!event.begin) after_each_layer_();
        },
        backwards);
  }

  // Runs a pass that is not measured. A first pass takes longer, because it allocates the gradients
  // of parameters, and because layers make what they keep permanently.
  void warm_up() {
    run([](const LayerEvent&) {});
  }

  LayerRuns::Traffic traffic() {
    const auto guard = on_device();
    return runs_.traffic(inputs());
  }

  // Turns values of pieces into values of layers: the first layer of a piece gets the piece's
  // value, its other layers get 0.
  template <typename T>
  std::vector<T> by_layer(const std::vector<T>& of_pieces) const {
    std::vector<T> result;
    for (size_t k = 0; k < of_pieces.size(); ++k) {
      result.push_back(of_pieces[k]);
      result.resize(result.size() + pieces()[k] - 1);
    }
    return result;
  }

 private:
  static const torch::nn::Sequential& checked(const torch::nn::Sequential& model) {
    check_model(model);
    TORCH_CHECK_VALUE(!c10::InferenceMode::is_enabled(),
                      "a model cannot be profiled under torch::InferenceMode, which has no "
                      "gradients; do it outside");
    return model;
  }

  static c10::Device prepared(c10::Device device) {
    if (device.is_meta()) {
      install_meta_kernels();
      install_meta_devices();
    }
    return device;
  }

  // Makes the model's device current, because tensors made on meta take the current device.
  c10::OptionalDeviceGuard on_device() const {
    return device_.is_cpu() ? c10::OptionalDeviceGuard() : c10::OptionalDeviceGuard(device_);
  }

  torch::nn::Sequential model_;
  std::vector<int64_t> shared_;
  int64_t rows_;
  c10::Device device_;
  LayerRuns runs_;
  Tensors sample_;
  std::vector<bool> needs_grad_;
  std::function<void()> after_each_layer_;
  std::optional<MetaAutocastScope> autocast_;
  ModelGuard guard_;  // the last member, so that the model is restored first
};

// Seconds of each layer.
struct MeasuredTimes {
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> input;  // empty without split backwards
  std::vector<double> weight;
};

MeasuredTimes measure_times(Subject& subject, bool split, double timeout,
                            const TimeProgressFn& progress) {
  const size_t pieces = subject.pieces().size();
  using Passes = std::vector<std::vector<double>>;  // [piece][pass]
  Passes forward(pieces), backward(pieces), input(pieces), weight(pieces);
  TimeProgress state;
  state.timeout = timeout;
  const auto start = std::chrono::steady_clock::now();
  while (state.passes < kLeastPasses || state.seconds < timeout) {
    std::chrono::steady_clock::time_point begin;
    subject.run([&](const LayerEvent& event) {
      if (event.begin) {
        begin = event.time;
        return;
      }
      (event.backward ? backward : forward)[event.piece].push_back(
          Seconds(event.time - begin).count());
    });
    // Split passes alternate with whole ones, so that other load on the machine affects both alike.
    const auto note_halves = [&](const LayerEvent& event) {
      if (event.begin) {
        begin = event.time;
      } else if (event.backward) {
        (event.weights ? weight : input)[event.piece].push_back(
            Seconds(event.time - begin).count());
      }
    };
    if (split) subject.run(note_halves, Backwards::kSplit);
    ++state.passes;
    state.seconds = Seconds(std::chrono::steady_clock::now() - start).count();
    if (progress) progress(state);
  }
  const auto medians = [&](Passes& passes) {
    std::vector<double> of_pieces;
    for (std::vector<double>& times : passes) of_pieces.push_back(median(std::move(times)));
    return subject.by_layer(of_pieces);
  };
  MeasuredTimes times{medians(forward), medians(backward), {}, {}};
  if (split) {
    times.input = medians(input);
    times.weight = medians(weight);
  }
  return times;
}

struct LayerBytes {
  int64_t kept = 0;
  int64_t workspace = 0;
};

bool sees_memory(c10::Device device) {
  return device.is_cpu() || device.is_meta() || device.is_cuda();
}

// Runs the layers once and has `memory` see what each of them allocates.
void record(Subject& subject, LayerMemory& memory, Backwards backwards) {
  const internal::AllocationScope scope(memory, /*cuda=*/subject.device().is_cuda());
  subject.run(
      [&](const LayerEvent& event) {
        if (event.weights) {
          event.begin ? memory.begin_weights(event.piece) : memory.end_weights(event.piece);
        } else if (event.backward) {
          event.begin ? memory.begin_backward(event.piece) : memory.end_backward(event.piece);
        } else {
          event.begin ? memory.begin_forward(event.piece) : memory.end_forward(event.piece);
        }
      },
      backwards);
}

std::vector<LayerBytes> measure_memory(Subject& subject) {
  LayerMemory memory(static_cast<int64_t>(subject.pieces().size()), subject.device());
  record(subject, memory, Backwards::kWhole);
  std::vector<LayerBytes> bytes;
  for (size_t k = 0; k < memory.kept().size(); ++k) {
    bytes.push_back({memory.kept()[k], memory.workspace()[k]});
  }
  return subject.by_layer(bytes);
}

// [layer] The bytes that wait for the weight half of a split backward.
std::vector<int64_t> measure_waiting(Subject& subject) {
  LayerMemory memory(static_cast<int64_t>(subject.pieces().size()), subject.device());
  record(subject, memory, Backwards::kSplit);
  return subject.by_layer(memory.waiting());
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.itemsize());
}

// [layer] The bytes of parameters and buffers. Each tensor counts at the first layer that has it.
std::vector<LayerProfile> held(const torch::nn::Sequential& model) {
  std::vector<LayerProfile> layers;
  std::unordered_set<const c10::TensorImpl*> known;
  const auto fresh = [&](const at::Tensor& tensor) {
    return tensor.defined() && known.insert(tensor.unsafeGetTensorImpl()).second;
  };
  for (const auto& child : model->named_children()) {
    LayerProfile layer;
    layer.name = child.key();
    for (const at::Tensor& parameter : child.value()->parameters()) {
      if (fresh(parameter)) layer.parameters += bytes_of(parameter);
    }
    for (const at::Tensor& buffer : child.value()->buffers()) {
      if (fresh(buffer)) layer.buffers += bytes_of(buffer);
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

// The device's name, for people.
std::string name_of(c10::Device device) {
  if (device.is_cpu()) {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
      const size_t colon = line.find(": ");
      if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
        return line.substr(colon + 2);
      }
    }
  }
  return device.str();
}

}  // namespace

std::vector<LayerTimes> profile_times(const torch::nn::Sequential& model, const Tensors& sample,
                                      const TimeOptions& options) {
  check_timeout(options.timeout());
  check_threads(options.cpu_threads());
  check_model(model);
  (void)rows_of(sample, options.micro_batch_rows(), options.shared_inputs());
  TORCH_CHECK_VALUE(!device_of(model, sample).is_meta(),
                    "the model is on the meta device, where nothing is computed, so layers have "
                    "no times; use profile_sizes or balance_by_size, or a model on another device");
  Subject subject(model, sample, options, options.cpu_threads());
  subject.warm_up();
  const MeasuredTimes measured =
      measure_times(subject, /*split=*/false, options.timeout(), options.progress());
  std::vector<LayerTimes> times;
  for (size_t k = 0; k < measured.forward.size(); ++k) {
    times.push_back({measured.forward[k], measured.backward[k]});
  }
  return times;
}

std::vector<LayerTimes> profile_times(const torch::nn::Sequential& model, const at::Tensor& sample,
                                      const TimeOptions& options) {
  return profile_times(model, Tensors{sample}, options);
}

std::vector<int64_t> profile_sizes(const torch::nn::Sequential& model, const Tensors& sample,
                                   const SizeOptions& options) {
  TORCH_CHECK_VALUE(options.chunks() > 0, "chunks must be at least 1, got ", options.chunks());
  TORCH_CHECK_VALUE(std::isfinite(options.param_scale()) && options.param_scale() >= 0,
                    "param_scale must be a finite number of at least 0 (see ParamScale), got ",
                    options.param_scale());
  check_model(model);
  (void)rows_of(sample, options.micro_batch_rows(), options.shared_inputs());
  const c10::Device device = device_of(model, sample);
  TORCH_CHECK_VALUE(sees_memory(device),
                    "sizes are measured on the CPU, on CUDA and on the meta device, but the model "
                    "is on ",
                    device,
                    "; profile a model of the same layers there (gpipe::MetaScope builds it)");
  const std::vector<LayerProfile> layers = held(model);
  Subject subject(model, sample, options, /*cpu_threads=*/0);
  subject.warm_up();
  const std::vector<LayerBytes> measured = measure_memory(subject);
  std::vector<int64_t> sizes;
  double sum = 0;
  for (size_t k = 0; k < layers.size(); ++k) {
    const double size =
        std::round(static_cast<double>(layers[k].parameters) * options.param_scale()) +
        static_cast<double>(measured[k].kept) * static_cast<double>(options.chunks());
    sum += size;
    TORCH_CHECK_VALUE(sum < 0x1p63, "the layers up to ", layer_text(model, k), " need ", sum,
                      " bytes, more than a number holds; give a smaller param_scale, got ",
                      options.param_scale(), ", or fewer chunks, got ", options.chunks());
    sizes.push_back(static_cast<int64_t>(size));
  }
  return sizes;
}

std::vector<int64_t> profile_sizes(const torch::nn::Sequential& model, const at::Tensor& sample,
                                   const SizeOptions& options) {
  return profile_sizes(model, Tensors{sample}, options);
}

Profile profile(const torch::nn::Sequential& model, const Tensors& sample,
                const ProfileOptions& options) {
  check_timeout(options.timeout());
  check_threads(options.cpu_threads());
  check_model(model);
  Profile result;
  result.layers = held(model);
  Subject subject(model, sample, options, options.cpu_threads());
  subject.after_each_layer(options.after_each_layer());
  result.device = name_of(subject.device());
  result.autocast = autocast_name(subject.device().is_meta() ? *MetaAutocastScope::type()
                                                             : subject.device().type());
  result.deferred_batch_norm = options.deferred_batch_norm();
  result.batch_rows = subject.rows();
  const Tensors inputs = subject.inputs();
  for (size_t k = 0; k < inputs.size(); ++k) {
    const at::Tensor& input = inputs[k];
    if (input.defined() && !is_shared(options.shared_inputs(), k)) result.input += bytes_of(input);
  }
  result.shared_inputs = options.shared_inputs();
  std::sort(result.shared_inputs->begin(), result.shared_inputs->end());
  subject.warm_up();
  if (!subject.device().is_meta()) {
    const MeasuredTimes times =
        measure_times(subject, options.split(), options.timeout(), options.progress());
    for (size_t k = 0; k < result.layers.size(); ++k) {
      LayerProfile& layer = result.layers[k];
      layer.forward = times.forward[k];
      layer.backward = times.backward[k];
      if (options.split()) layer.split = SplitBackward{times.input[k], times.weight[k], 0};
    }
  }
  if (sees_memory(subject.device())) {
    const std::vector<LayerBytes> bytes = measure_memory(subject);
    for (size_t k = 0; k < bytes.size(); ++k) {
      result.layers[k].kept = bytes[k].kept;
      result.layers[k].workspace = bytes[k].workspace;
    }
    if (options.split()) {
      const std::vector<int64_t> waiting = measure_waiting(subject);
      for (size_t k = 0; k < waiting.size(); ++k) {
        std::optional<SplitBackward>& split = result.layers[k].split;
        if (!split) split.emplace();  // on meta, where no times are measured
        split->waiting = waiting[k];
      }
    }
  }
  const LayerRuns::Traffic traffic = subject.traffic();
  size_t layer = 0;
  for (size_t k = 0; k < traffic.outputs.size(); ++k) {
    layer += subject.pieces()[k];  // the last layer of the piece gives the output
    result.layers[layer - 1].output = traffic.outputs[k];
  }
  for (const auto& skip : traffic.skips) result.skips.push_back({skip.from, skip.to, skip.bytes});
  return result;
}

Profile profile(const torch::nn::Sequential& model, const at::Tensor& sample,
                const ProfileOptions& options) {
  return profile(model, Tensors{sample}, options);
}

}  // namespace gpipe::balance
