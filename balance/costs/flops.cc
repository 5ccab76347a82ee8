// LibTorch is built with NDEBUG. Without NDEBUG, RecordFunction would have a member here that it
// does not have in LibTorch, and the recorded inputs would look invalid.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "balance/costs/flops.h"

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "balance/costs/first_rows.h"
#include "balance/costs/model_guard.h"
#include "balance/costs/profiler.h"
#include "gpipe/internal/layer_runs/layer_runs.h"
#include "gpipe/internal/operators/gathering.h"
#include "interception/recorded_inputs.h"
#include "meta/meta_autocast.h"
#include "meta/meta_devices.h"
#include "meta/meta_kernels.h"
#include "meta/meta_target.h"

namespace gpipe::balance {
namespace {

double bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  return static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
}

double size(const c10::IValue& value, int64_t dim) {
  return static_cast<double>(value.toTensor().size(dim));
}

double numel(const c10::IValue& value) { return static_cast<double>(value.toTensor().numel()); }

// The multiplications and additions of a product: `flops`. A convolution that is not transposed has
// `per_output` instead, for each number of its output.
struct Product {
  double flops = 0;
  double per_output = 0;
  bool has_weight = true;  // whether an operand is a weight
};

// Whether the operator is a product, and its size.
bool product_of(const char* name, c10::ArrayRef<const c10::IValue> in, Product& product) {
  const auto is = [&](const char* text) { return std::strcmp(name, text) == 0; };
  if (is("aten::convolution")) {
    // The weight is [out, in / groups, ...], or [in, out / groups, ...] in a transposed
    // convolution.
    const double per_channel = 2 * numel(in[1]) / size(in[1], 0);
    if (in[6].toBool()) {
      product.flops = per_channel * numel(in[0]);
    } else {
      product.per_output = per_channel;
    }
    return true;
  }
  if (is("aten::scaled_dot_product_attention")) {
    // Queries times keys, [..., T, D] x [..., D, S], and then weights times values. A causal mask
    // leaves out half of the pairs.
    product.flops = 2 * 2 * numel(in[0]) * size(in[1], -2) * (in[5].toBool() ? 0.5 : 1.0);
    product.has_weight = false;
    return true;
  }
  size_t left = 0;
  if (is("aten::addmm") || is("aten::baddbmm") || is("aten::addmv")) {
    left = 1;
  } else if (!is("aten::mm") && !is("aten::bmm") && !is("aten::mv")) {
    return false;
  }
  product.has_weight = !is("aten::bmm") && !is("aten::baddbmm");
  const at::Tensor& right = in[left + 1].toTensor();
  // [m, k] x [k, n], with n = 1 for a vector.
  const bool is_vector = is("aten::mv") || is("aten::addmv");
  product.flops =
      2 * numel(in[left]) * (is_vector ? 1.0 : static_cast<double>(right.size(right.dim() - 1)));
  return true;
}

// Whether all results are views of inputs.
bool is_view(const at::RecordFunction& function) {
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  if (!schema || schema->returns().empty()) return false;
  for (const c10::Argument& result : schema->returns()) {
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return false;
  }
  return true;
}

// A Counter counts the work of this thread's operators while it lives.
class Counter {
 public:
  Counter() {
    current() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Counter::begin, &Counter::end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~Counter() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  // From here on, operators are counted into `work`. Null: they are not counted.
  void count_into(LayerWork* work) { work_ = work; }

 private:
  struct Operator : at::ObserverContext {
    bool is_product = false;
    Product product;
    double input_bytes = 0;
    bool has_inputs = false;
    bool gathers = false;  // an operator that gathers moments inside a batch norm
  };

  static Counter*& current() {
    thread_local Counter* counter = nullptr;
    return counter;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    Counter& counter = *current();
    auto op = std::make_unique<Operator>();
    // Records that have no schema are not operators. By its schema a cast is a view, so the copy
    // that it calls is counted instead of the cast.
    op->gathers = internal::GatheringScope::is_open() && function.operator_schema().has_value() &&
                  !is_view(function);
    const bool is_outermost = counter.depth_++ == 0;
    if (is_outermost) {
      counter.flops_of_products_ = 0;
      counter.has_weight_ = true;
    }
    if (is_outermost || (op->gathers && counter.gathering_++ == 0)) {
      for (const c10::IValue& input : internal::recorded_inputs(function)) {
        for_each_tensor(input, [&](const at::Tensor& tensor) {
          op->input_bytes += bytes_of(tensor);
          op->has_inputs = true;
        });
      }
    }
    // Products inside a product are not counted, because they are part of its implementation.
    if (counter.work_ != nullptr && counter.products_ == 0) {
      op->is_product =
          product_of(function.name(), internal::recorded_inputs(function), op->product);
    }
    if (op->is_product) ++counter.products_;
    return op;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    Counter& counter = *current();
    const auto* op = static_cast<const Operator*>(context);
    double outputs = 0;
    double output_bytes = 0;
    for (const c10::IValue& output : function.outputs()) {
      for_each_tensor(output, [&](const at::Tensor& tensor) {
        if (tensor.defined()) outputs += static_cast<double>(tensor.numel());
        output_bytes += bytes_of(tensor);
      });
    }
    if (op->is_product) {
      --counter.products_;
      counter.flops_of_products_ += op->product.flops + op->product.per_output * outputs;
      counter.has_weight_ = counter.has_weight_ && op->product.has_weight;
    }
    const bool gathered = op->gathers && --counter.gathering_ == 0;
    if (--counter.depth_ > 0 && !gathered) return;
    if (counter.work_ == nullptr) return;
    const bool product = !gathered && counter.flops_of_products_ > 0;
    if (!product && (!op->has_inputs || is_view(function))) return;
    add(counter.work_->forward, product ? counter.flops_of_products_ : outputs,
        op->input_bytes + output_bytes, 1);
    if (gathered) return;  // gathering has no backward
    const double times = product ? 2 : 1;
    add(counter.work_->backward, times * (product ? counter.flops_of_products_ : outputs),
        times * (op->input_bytes + output_bytes), times);
    if (product && counter.has_weight_) {
      add(counter.work_->weights, counter.flops_of_products_, op->input_bytes + output_bytes, 1);
    }
  }

  static void add(Work& work, double flops, double bytes, double operators) {
    work.flops += flops;
    work.bytes += bytes;
    work.operators += operators;
  }

  at::CallbackHandle handle_ = 0;
  LayerWork* work_ = nullptr;
  int depth_ = 0;
  int gathering_ = 0;  // nested operators that gather moments
  int products_ = 0;   // nested products that run
  double flops_of_products_ = 0;
  bool has_weight_ = true;  // whether all products have a weight
};

// Installs what models need to run on the meta device.
void install_meta() {
  install_meta_kernels();
  install_meta_devices();
}

// Counts the work; profile() must have checked the arguments.
std::vector<LayerWork> count(torch::nn::Sequential model, const Tensors& sample,
                             const std::vector<int64_t>& shared_inputs,
                             bool deferred_batch_norm = false) {
  const c10::Device device = device_of(model, sample, c10::kMeta);
  // The layers run on the calling thread, which the counter observes.
  internal::LayerRuns runs(model, device, /*cpu_threads=*/0, internal::pieces_of(model),
                           deferred_batch_norm);
  const ModelGuard guard(*model, device);
  model->train();
  Tensors inputs;
  for (const at::Tensor& tensor : sample) {
    inputs.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
    if (tensor.defined() && tensor.requires_grad()) inputs.back().set_requires_grad(true);
  }
  std::vector<LayerWork> of_pieces(runs.pieces().size());
  Counter counter;
  runs.run(inputs, shared_inputs, [&](const internal::LayerEvent& event) {
    const bool counts = event.begin && !event.backward;
    counter.count_into(counts ? &of_pieces[static_cast<size_t>(event.piece)] : nullptr);
  });
  std::vector<LayerWork> result;
  for (size_t k = 0; k < of_pieces.size(); ++k) {
    result.push_back(of_pieces[k]);
    result.resize(result.size() + static_cast<size_t>(runs.pieces()[k]) - 1);
  }
  return result;
}

void check_speed(const char* name, double value) {
  TORCH_CHECK_VALUE(std::isfinite(value) && value > 0, name, " of a nominal device must be a ",
                    "finite number above 0, got ", value);
}

}  // namespace

double NominalDevice::seconds(const Work& work) const {
  return work.flops / flops_per_second + work.bytes / bytes_per_second +
         work.operators * seconds_per_operator;
}

std::vector<LayerWork> flops(const torch::nn::Sequential& model, const Tensors& sample,
                             const std::vector<int64_t>& shared_inputs) {
  std::optional<MetaAutocastScope> autocast;
  if (!model.is_empty() && !model->is_empty() && !sample.empty()) {
    if (device_of(model, sample, c10::kMeta).is_meta()) {
      install_meta();
      if (!MetaAutocastScope::type()) autocast.emplace(meta_target());
    }
  }
  // This profile is made only because profile() checks the model and the sample.
  ProfileOptions quick;
  quick.timeout(1e-9).shared_inputs(shared_inputs);
  (void)profile(model, sample, quick);
  return count(model, sample, shared_inputs);
}

Profile profile_on_meta(const torch::nn::Sequential& model, const Tensors& sample,
                        const NominalDevice& device, const std::vector<int64_t>& shared_inputs,
                        bool deferred_batch_norm) {
  check_speed("flops_per_second", device.flops_per_second);
  check_speed("bytes_per_second", device.bytes_per_second);
  TORCH_CHECK_VALUE(std::isfinite(device.seconds_per_operator) && device.seconds_per_operator >= 0,
                    "seconds_per_operator of a nominal device must be a finite number of at least "
                    "0, got ",
                    device.seconds_per_operator);
  if (!model.is_empty() && !model->is_empty()) {
    const c10::Device model_device = device_of(model, sample, c10::kMeta);
    TORCH_CHECK_VALUE(model_device.is_meta(),
                      "a nominal profile is of a model on the meta device, but this "
                      "one is on ",
                      model_device,
                      "; measure it there with profile(), or build the model "
                      "while a gpipe::MetaScope lives (meta/meta_scope.h)");
  }
  install_meta();
  const MetaAutocastScope autocast(device.type);
  Profile result = profile(
      model, sample,
      ProfileOptions().shared_inputs(shared_inputs).deferred_batch_norm(deferred_batch_norm));
  result.device = "nominal, from FLOPs";
  const std::vector<LayerWork> work = count(model, sample, shared_inputs, deferred_batch_norm);
  for (size_t k = 0; k < work.size(); ++k) {
    result.layers[k].forward = device.seconds(work[k].forward);
    result.layers[k].backward = device.seconds(work[k].backward);
    // Only the times of the halves are replaced; their bytes stay those of profile().
    SplitBackward& split = result.layers[k].split.emplace(split_backward(result.layers[k]));
    split.weight = device.seconds(work[k].weights);
    split.input = result.layers[k].backward - split.weight;
  }
  return result;
}

}  // namespace gpipe::balance
