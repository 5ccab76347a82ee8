#include "gpipe/internal/operators/batch_norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/item_ops.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "gpipe/internal/operators/gathering.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

thread_local RunningStatisticsScope* current_scope = nullptr;

at::Tensor tensor_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// Returns the sum of term(value) over `count` values, in double. The function keeps several sums
// side by side, because with a single sum each addition would wait for the one before.
template <typename Value, typename Term>
double sum_of(const Value* values, int64_t count, int64_t stride, const Term& term) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t k = 0;
  for (; k + kSums <= count; k += kSums) {
    for (int64_t n = 0; n < kSums; ++n)
      sums[n] += term(static_cast<double>(values[(k + n) * stride]));
  }
  for (; k < count; ++k) sums[0] += term(static_cast<double>(values[k * stride]));
  for (int64_t n = 1; n < kSums; ++n) sums[0] += sums[n];
  return sums[0];
}

// `input`: (N, C, ...), contiguous. The result is the same for any number of threads.
template <typename Value>
void gather_on_cpu(const at::Tensor& input, double* means, double* spreads) {
  const int64_t rows = input.size(0);
  const int64_t channels = input.size(1);
  const int64_t area = input.numel() / (rows * channels);
  const Value* const values = input.const_data_ptr<Value>();
  const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / (rows * area));
  at::parallel_for(0, channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const auto sum = [&](const auto& term) {
        if (area == 1) return sum_of(values + c, rows, channels, term);
        double total = 0;
        for (int64_t n = 0; n < rows; ++n) {
          total += sum_of(values + (n * channels + c) * area, area, 1, term);
        }
        return total;
      };
      const double mean =
          sum([](double value) { return value; }) / static_cast<double>(rows * area);
      means[c] = mean;
      spreads[c] = sum([mean](double value) { return (value - mean) * (value - mean); });
    }
  });
}

// Moments over all dimensions except the channels, in double whatever the input's dtype is. The CPU
// has loops of our own: LibTorch's operators would first make a copy in double, and take several
// times as long as the norm itself.
void gather(const at::Tensor& input, StatisticsLog::Statistics& statistics) {
  c10::NoGradGuard no_grad;
  statistics.elements = input.numel() / input.size(1);
  const bool on_cpu = input.is_cpu() || (input.is_meta() && CpuGatheringScope::is_open());
  if (on_cpu && input.layout() == c10::kStrided && !input.is_complex()) {
    at::Tensor values = input.detach();
    if (values.scalar_type() != at::kDouble) values = values.to(at::kFloat);
    values = values.contiguous();
    statistics.mean = at::empty({input.size(1)}, values.options().dtype(at::kDouble));
    statistics.spread = at::empty_like(statistics.mean);
    if (values.is_meta()) return;
    auto* const means = statistics.mean.mutable_data_ptr<double>();
    auto* const spreads = statistics.spread.mutable_data_ptr<double>();
    if (values.scalar_type() == at::kDouble) {
      gather_on_cpu<double>(values, means, spreads);
    } else {
      gather_on_cpu<float>(values, means, spreads);
    }
    return;
  }
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d != 1) dims.push_back(d);
  }
  at::Tensor variance;
  std::tie(variance, statistics.mean) =
      at::var_mean(input.detach().to(at::kDouble), dims, /*correction=*/0);
  statistics.spread = variance * static_cast<double>(statistics.elements);
}

// Mean and unbiased variance of each instance and channel, computed as the operator instance_norm
// does: the channels of every instance are treated as channels of a batch norm.
void gather_instances(const at::Tensor& input, StatisticsLog::Statistics& statistics) {
  c10::NoGradGuard no_grad;
  statistics.instances = input.size(0);
  std::vector<int64_t> shape = input.sizes().vec();
  shape[1] *= shape[0];
  shape[0] = 1;
  auto zeros_as = [&](const at::Tensor& running) {
    return running.defined() ? at::zeros({shape[1]}, running.options()) : at::Tensor();
  };
  statistics.mean = zeros_as(statistics.running_mean);
  statistics.spread = zeros_as(statistics.running_var);
  at::batch_norm_update_stats(input.detach().contiguous().view(shape), statistics.mean,
                              statistics.spread, /*momentum=*/1);
}

// Returns a copy with the input's strides, because the order of sums depends on them. That includes
// an expanded tensor, whose strides are 0 where it repeats itself.
at::Tensor copy_of(const at::Tensor& input) {
  c10::NoGradGuard no_grad;
  at::Tensor once = input.detach();
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (input.stride(d) == 0) once = once.narrow(d, 0, 1);
  }
  return at::empty_strided(once.sizes(), once.strides(), once.options())
      .copy_(once)
      .expand(input.sizes());
}

// Replaces an operator that updates running statistics.
class UpdateKernel : public c10::OperatorKernel {
 public:
  // Returns null if the operator updates no running statistics.
  static std::unique_ptr<UpdateKernel> make(const c10::FunctionSchema& schema) {
    auto kernel = std::make_unique<UpdateKernel>();
    kernel->arity_ = schema.arguments().size();
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const std::string& name = schema.arguments()[i].name();
      if (name == "input") kernel->input_ = i;
      if (name == "running_mean") kernel->mean_ = i;
      if (name == "running_var") kernel->variance_ = i;
      if (name == "momentum" || name == "exponential_average_factor") kernel->momentum_ = i;
      if (name == "training" || name == "use_input_stats") kernel->training_ = i;
      if (name == "use_input_stats") kernel->by_instance_ = true;
    }
    if (!kernel->input_ || !kernel->mean_ || !kernel->variance_ || !kernel->momentum_) {
      return nullptr;
    }
    for (const char* other : {"backward", "functional", "no_update", "no_training"}) {
      if (schema.name().find(other) != std::string::npos) return nullptr;
    }
    return kernel;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    InterceptionPause pause;
    c10::IValue* const values = stack->data() + (stack->size() - arity_);
    RunningStatisticsScope* const scope = RunningStatisticsScope::current();
    if (scope == nullptr || (training_ && !values[*training_].toBool())) {
      if (scope != nullptr && c10::GradMode::is_enabled()) {
        for (const size_t k : {*mean_, *variance_}) scope->lend(values[k]);
      }
      return op.redispatchBoxed(after_interception(keys), stack);
    }
    StatisticsLog::Statistics statistics;
    statistics.running_mean = tensor_of(values[*mean_]);
    statistics.running_var = tensor_of(values[*variance_]);
    if ((!statistics.running_mean.defined() && !statistics.running_var.defined()) ||
        !scope->takes_update(statistics.running_mean, statistics.running_var)) {
      return op.redispatchBoxed(after_interception(keys), stack);
    }
    const at::Tensor input = values[*input_].toTensor();
    statistics.momentum = values[*momentum_].toDouble();
    for (const size_t k : {*mean_, *variance_}) {
      const at::Tensor running = tensor_of(values[k]);
      if (running.defined()) values[k] = at::zeros_like(running);
    }
    op.redispatchBoxed(after_interception(keys), stack);
    if (scope->policy() == RunningStatistics::kKeep) return;
    const bool is_plain = scope->policy() == RunningStatistics::kUpdate;
    if (input.numel() == 0 && !(is_plain && by_instance_)) {
      // Without elements there is nothing to update with, but a counter that was raised just before
      // still counts.
    } else if (is_plain) {
      statistics.input = copy_of(input);
      statistics.modes.emplace();
      statistics.threads = at::get_num_threads();
      // If there are no rows, LibTorch's instance norm still makes an update, with NaN.
      statistics.instances = by_instance_ ? std::max<int64_t>(input.size(0), 1) : 0;
    } else {
      const GatheringScope gathering;
      by_instance_ ? gather_instances(input, statistics) : gather(input, statistics);
    }
    scope->update(std::move(statistics));
  }

 private:
  size_t arity_ = 0;
  std::optional<size_t> input_, mean_, variance_, momentum_, training_;
  bool by_instance_ = false;
};

// Intercepts `num_batches_tracked += 1`.
at::Tensor& add_scalar(c10::DispatchKeySet keys, at::Tensor& self, const at::Scalar& other,
                       const at::Scalar& alpha) {
  RunningStatisticsScope* const scope = RunningStatisticsScope::current();
  if (scope != nullptr && alpha.equal(1) && scope->takes_count(self, other)) return self;
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("aten::add_", "Scalar")
          .typed<at::Tensor&(at::Tensor&, const at::Scalar&, const at::Scalar&)>();
  const InterceptionPause pause;  // LibTorch calls add_.Tensor
  return op.redispatch(after_interception(keys), self, other, alpha);
}

// Intercepts the same as Python calls it: the number is a tensor there.
at::Tensor& add_number(c10::DispatchKeySet keys, at::Tensor& self, const at::Tensor& other,
                       const at::Scalar& alpha) {
  RunningStatisticsScope* const scope = RunningStatisticsScope::current();
  if (scope != nullptr && other.unsafeGetTensorImpl()->is_wrapped_number() && alpha.equal(1) &&
      scope->is_counter(self)) {
    const InterceptionPause pause;
    if (scope->takes_count(self, other.item())) return self;
  }
  return at::_ops::add__Tensor::redispatch(after_interception(keys), self, other, alpha);
}

// Intercepts `1 / num_batches_tracked.item()`.
at::Scalar read_number(c10::DispatchKeySet keys, const at::Tensor& self) {
  const at::Scalar value = at::_ops::item::redispatch(after_interception(keys), self);
  RunningStatisticsScope* const scope = RunningStatisticsScope::current();
  return scope == nullptr ? value : scope->read(self, value);
}

void intercept() {
  static const Interceptor interceptor([](torch::Library& aten) {
    for_each_aten_operator([&aten](const c10::OperatorHandle& op, const char* name) {
      std::unique_ptr<UpdateKernel> kernel = UpdateKernel::make(op.schema());
      if (kernel == nullptr) return;
      aten.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    });
    aten.impl("add_.Scalar", torch::CppFunction(add_scalar));
    aten.impl("add_.Tensor", torch::CppFunction(add_number));
    aten.impl("item", torch::CppFunction(read_number));
  });
}

}  // namespace

RunningStatisticsScope::RunningStatisticsScope(RunningStatistics policy,
                                               const TrackedStatistics& tracked, StatisticsLog* log,
                                               int64_t micro_batch, bool any_order, int64_t stage)
    : policy_(policy),
      tracked_(tracked),
      log_(log),
      place_{micro_batch, /*layer=*/-1, policy == RunningStatistics::kDefer, any_order},
      stage_(stage),
      former_(current_scope) {
  intercept();
  current_scope = this;
}

RunningStatisticsScope::~RunningStatisticsScope() {
  current_scope = former_;
  for (const Loan& loan : loans_) {
    // If no update was noted since the copy was made, the copy stays as it is. Otherwise it gets
    // the new values: the update may have come through another tensor over the same memory.
    if (loan.updates == updated_.size()) continue;
    try {
      // Autograd is not told of this copy, as it is not told of the update itself.
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      loan.copy.copy_(loan.running);
    } catch (...) {  // an exception may be under way, which tells more
    }
  }
}

void RunningStatisticsScope::enter_layer(int64_t layer) {
  if (current_scope != nullptr) current_scope->place_.layer = layer;
}

RunningStatisticsScope* RunningStatisticsScope::current() { return current_scope; }

bool RunningStatisticsScope::is_counter(const at::Tensor& tensor) const {
  return tracked_.counter(tensor) != nullptr;
}

bool RunningStatisticsScope::takes_count(const at::Tensor& counter, const c10::Scalar& by) {
  const TrackedStatistics::Counter* known = tracked_.counter(counter);
  if (known == nullptr) return false;
  const bool at_once = policy_ != RunningStatistics::kDefer && !place_.any_order &&
                       !tracked_.must_wait(stage_, counter);
  // A tensor that may not be a norm's counter is counted at once. It is put back after a recompute,
  // as other buffers are (LayerBuffers), so that a layer that reads it finds the value of its
  // forward.
  if (at_once && !known->is_norms) return false;
  updated_.push_back(counter.unsafeGetTensorImpl());
  if (at_once && policy_ == RunningStatistics::kUpdate) return false;
  if (policy_ != RunningStatistics::kKeep) log_->count(place_, counter, known->cumulative, by);
  read_ = Read{counter.unsafeGetTensorImpl(), 0};
  // If it was counted at once in the forward, a recompute finds the addition in the counter.
  if (!at_once) waiting_.push_back({counter.unsafeGetTensorImpl(), by.to<int64_t>()});
  return true;
}

at::Scalar RunningStatisticsScope::read(const at::Tensor& counter, const at::Scalar& value) {
  int64_t by = 0;
  for (const Waiting& waiting : waiting_) {
    if (waiting.counter == counter.unsafeGetTensorImpl()) by += waiting.by;
  }
  if (by == 0 || !value.isIntegral(/*includeBool=*/false)) return value;
  const int64_t read = value.to<int64_t>() + by;
  if (read_.counter == counter.unsafeGetTensorImpl()) read_.value = read;
  return read;
}

bool RunningStatisticsScope::takes_update(const at::Tensor& running_mean,
                                          const at::Tensor& running_var) {
  for (const at::Tensor* tensor : {&running_mean, &running_var}) {
    if (tensor->defined()) updated_.push_back(tensor->unsafeGetTensorImpl());
  }
  if (!updates_at_once()) return true;
  // If a counter was logged, the update of its norm must be logged too, because the momentum may
  // depend on the counter.
  return tracked_.must_wait(stage_, running_mean) || tracked_.must_wait(stage_, running_var) ||
         log_->counts(place_);
}

void RunningStatisticsScope::lend(c10::IValue& running) {
  const at::Tensor tensor = tensor_of(running);
  // Norms that no layer has registered are not tracked. So after any update in this scope a copy is
  // made, because the tensor may be an alias of what was updated. A copy that was not needed costs
  // little.
  if (!tensor.defined() || (updated_.empty() && !tracked_.trains(tensor))) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor copy = tensor.detach().clone();
  loans_.push_back({tensor, copy, updated_.size()});
  running = copy;
}

bool RunningStatisticsScope::has_updated(const at::Tensor& tensor) const {
  return std::find(updated_.begin(), updated_.end(), tensor.unsafeGetTensorImpl()) !=
         updated_.end();
}

void RunningStatisticsScope::update(StatisticsLog::Statistics statistics) {
  const Read read = std::exchange(read_, Read());
  const bool cumulative =
      read.value > 0 && statistics.momentum == 1.0 / static_cast<double>(read.value);
  log_->update(place_, std::move(statistics), cumulative);
}

}  // namespace gpipe::internal
