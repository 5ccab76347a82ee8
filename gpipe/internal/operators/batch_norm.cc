#include "gpipe/internal/operators/batch_norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/instance_norm.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpipe/internal/operators/gathering.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

constexpr int64_t kShared = StatisticsUse::kSeveral;
constexpr char kCounterName[] = "num_batches_tracked";

thread_local RunningStatisticsScope* current_scope = nullptr;

// Sets this thread's number of intra-op threads, and restores it on exit. An equal number is not
// set: at::set_num_threads also writes the number of threads that are started later.
class ThreadsScope {
 public:
  explicit ThreadsScope(int threads) : before_(at::get_num_threads()) {
    if (threads != before_) set_threads_of_this_thread(threads);
  }
  ~ThreadsScope() {
    if (at::get_num_threads() != before_) set_threads_of_this_thread(before_);
  }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  const int before_;
};

at::Tensor tensor_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// The three known kinds have no common base class with these members.
struct BatchNorm {
  const at::Tensor& counter;
  const at::Tensor& running_mean;
  const at::Tensor& running_var;
  bool cumulative;
};

template <typename Module>
std::optional<BatchNorm> as(torch::nn::Module& module) {
  auto* norm = dynamic_cast<Module*>(&module);
  if (norm == nullptr) return std::nullopt;
  return BatchNorm{norm->num_batches_tracked, norm->running_mean, norm->running_var,
                   !norm->options.momentum().has_value()};
}

std::optional<BatchNorm> as_batch_norm(torch::nn::Module& module) {
  if (auto norm = as<torch::nn::BatchNorm2dImpl>(module)) return norm;
  if (auto norm = as<torch::nn::BatchNorm1dImpl>(module)) return norm;
  return as<torch::nn::BatchNorm3dImpl>(module);
}

// The sum of term(value) over `count` values, in double. It keeps several sums side by side,
// because a single sum would wait for each of its additions.
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

// `input`: (N, C, ...), contiguous. The same for any number of threads.
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
// has loops of our own: LibTorch would first make a copy in double, and take several times as long
// as the norm itself.
void gather(const at::Tensor& input, StatisticsLog::Statistics& statistics) {
  c10::NoGradGuard no_grad;
  statistics.elements = input.numel() / input.size(1);
  if (input.is_cpu() && input.layout() == c10::kStrided && !input.is_complex()) {
    at::Tensor values = input.detach();
    if (values.scalar_type() != at::kDouble) values = values.to(at::kFloat);
    values = values.contiguous();
    statistics.mean = at::empty({input.size(1)}, values.options().dtype(at::kDouble));
    statistics.spread = at::empty_like(statistics.mean);
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

// Mean and unbiased variance of each instance and channel, computed as the operator does: it treats
// the channels of every instance as channels of a batch norm.
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

// A copy with the input's strides, because the order of sums depends on them. That includes an
// expanded tensor, whose strides are 0 where it repeats itself.
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
  // Null if the operator updates none.
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
      // There is nothing to update with, but a counter that was raised just before still counts.
    } else if (is_plain) {
      statistics.input = copy_of(input);
      statistics.modes.emplace();
      statistics.threads = at::get_num_threads();
      // LibTorch's instance norm makes an update even if there are no rows: with NaN.
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
  return op.redispatch(after_interception(keys), self, other, alpha);
}

// Computed in double and rounded once.
at::Tensor blended(const at::Tensor& running, const at::Tensor& fresh, double momentum) {
  return fresh.to(at::kDouble) * momentum + running.to(at::kDouble) * (1 - momentum);
}

// The index of `tensor` in `buffers`; -1 if it is undefined.
int64_t number_of(const at::Tensor& tensor, const std::vector<at::Tensor>& buffers) {
  if (!tensor.defined()) return -1;
  for (size_t k = 0; k < buffers.size(); ++k) {
    if (tensor.is_same(buffers[k]) || are_same_view(tensor, buffers[k])) {
      return static_cast<int64_t>(k);
    }
  }
  TORCH_CHECK(false, "a norm updates running statistics of shape ", tensor.sizes(),
              " that no layer has registered as a buffer, so they cannot be found in the other "
              "replicas; register them (register_buffer)");
}

void intercept() {
  static const Interceptor interceptor([](torch::Library& aten) {
    for_each_aten_operator([&aten](const c10::OperatorHandle& op, const char* name) {
      std::unique_ptr<UpdateKernel> kernel = UpdateKernel::make(op.schema());
      if (kernel == nullptr) return;
      aten.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    });
    aten.impl("add_.Scalar", torch::CppFunction(add_scalar));
  });
}

}  // namespace

void TrackedStatistics::add(int64_t stage, torch::nn::Module& layer) {
  modules_.emplace_back();
  if (const std::optional<BatchNorm> norm = as_batch_norm(layer)) {
    for (const at::Tensor* tensor : {&norm->counter, &norm->running_mean, &norm->running_var}) {
      own(stage, *tensor);
    }
    if (norm->counter.defined()) {
      Counter& counter = counters_.try_emplace(norm->counter.unsafeGetTensorImpl()).first->second;
      counter.cumulative = counter.cumulative || norm->cumulative;
    }
  }
  for (const auto& buffer : layer.named_buffers(/*recurse=*/false)) {
    own(stage, buffer.value());
    if (buffer.key() == kCounterName) {
      counters_.try_emplace(buffer.value().unsafeGetTensorImpl());
    }
  }
  for (const std::shared_ptr<torch::nn::Module>& child : layer.children()) {
    if (child != nullptr) add(stage, *child);
  }
}

void TrackedStatistics::own(int64_t stage, const at::Tensor& tensor) {
  // On meta there are no values that could depend on timing.
  if (!tensor.defined() || tensor.is_meta()) return;
  modules_.back().push_back(tensor);  // keeps it alive
  const c10::StorageImpl* memory = several_stages_ ? storage_of(tensor) : nullptr;
  if (memory == nullptr) return;
  const auto [place, fresh] =
      owners_.try_emplace(memory, Owner{stage, /*alone=*/true, modules_.size() - 1});
  Owner& owner = place->second;
  if (owner.stage != stage) owner.stage = kShared;
  if (fresh && use_ != nullptr) owner.alone = use_->note(stage, tensor) == stage;
}

const TrackedStatistics::Counter* TrackedStatistics::counter(const at::Tensor& tensor) const {
  const auto found = counters_.find(tensor.unsafeGetTensorImpl());
  return found == counters_.end() ? nullptr : &found->second;
}

bool TrackedStatistics::is_shared(const at::Tensor& tensor) const {
  if (owners_.empty()) return false;
  const auto found = owners_.find(storage_of(tensor));
  return found != owners_.end() && found->second.stage == kShared;
}

bool TrackedStatistics::must_wait(const at::Tensor& tensor) const {
  if (owners_.empty()) return false;
  const auto found = owners_.find(storage_of(tensor));
  return found != owners_.end() && (found->second.stage == kShared || !found->second.alone);
}

bool TrackedStatistics::must_wait(int64_t stage, const at::Tensor& tensor) const {
  if (!several_stages_ || tensor.is_meta() || storage_of(tensor) == nullptr) return false;
  if (must_wait(tensor)) return true;
  if (use_ == nullptr) return false;
  // A tensor that no layer has registered may be a layer's temporary, for this update alone.
  const auto found = owners_.find(storage_of(tensor));
  const bool is_registered = found != owners_.end();
  if (is_registered && found->second.stage == stage) return false;
  const bool is_late = use_->note(stage, tensor) != stage;
  if (is_late && is_registered) {
    for (const at::Tensor& other : modules_[found->second.module]) (void)use_->note(stage, other);
  }
  TORCH_CHECK(
      !is_late, "stage ", stage, " updates running statistics of a norm that ",
      is_registered ? absl::StrCat("stage ", found->second.stage, " has registered")
                    : std::string("another stage updates, too, and no layer has registered"),
      ", so that they would depend on timing. Register the norm (register_module) in the layers of "
      "both stages");
  return false;
}

void StatisticsLog::count(const Place& place, const at::Tensor& counter, bool cumulative,
                          const c10::Scalar& by) {
  settle();
  counted_ = Entry{place, counter, cumulative, by, {}};
}

bool StatisticsLog::counts(const Place& place) const {
  return counted_ && counted_->place.micro_batch == place.micro_batch &&
         counted_->place.layer == place.layer;
}

void StatisticsLog::update(const Place& place, Statistics statistics) {
  Entry entry;
  if (counts(place)) {
    entry = std::move(*counted_);
    counted_.reset();
  } else {
    settle();
    entry.place = place;
  }
  entry.statistics = std::move(statistics);
  put(std::move(entry));
}

void StatisticsLog::settle() {
  if (!counted_) return;
  Entry entry = std::move(*counted_);
  counted_.reset();
  put(std::move(entry));
}

void StatisticsLog::put(Entry entry) {
  if (entry.place.deferred && !entry.place.any_order) {
    // Micro-batches usually make the same calls in the same order, so the search ends at once.
    for (size_t k = 0; k < entries_.size(); ++k) {
      const size_t place = (next_ + k) % entries_.size();
      Entry& known = entries_[place];
      if (known.place.micro_batch == entry.place.micro_batch ||
          known.place.layer != entry.place.layer || !known.counter.is_same(entry.counter) ||
          !are_same_view(known.statistics.running_mean, entry.statistics.running_mean) ||
          !are_same_view(known.statistics.running_var, entry.statistics.running_var)) {
        continue;
      }
      merge(known.statistics, entry.statistics);
      known.place.micro_batch = entry.place.micro_batch;
      next_ = place + 1;
      return;
    }
  }
  entries_.push_back(std::move(entry));
  next_ = entries_.size();
}

// Merges the entries that put() has not merged.
void StatisticsLog::merge_in_order() {
  const bool any_order = std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.place.deferred && entry.place.any_order;
  });
  if (!any_order) return;
  std::vector<Entry> entries = std::exchange(entries_, {});
  next_ = 0;
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.place.micro_batch < b.place.micro_batch;
  });
  for (Entry& entry : entries) {
    entry.place.any_order = false;
    put(std::move(entry));
  }
}

// For batch norms, the pairwise update of Chan, Golub, LeVeque (1979), which does not suffer from
// cancellation as a sum of squares does.
void StatisticsLog::merge(Statistics& sum, Statistics& fresh) {
  c10::NoGradGuard no_grad;
  sum.momentum = fresh.momentum;
  if (!fresh.mean.defined() && !fresh.spread.defined()) return;
  if (!sum.mean.defined() && !sum.spread.defined()) {
    sum = std::move(fresh);
  } else if (fresh.instances > 0) {
    if (sum.mean.defined()) sum.mean = at::cat({sum.mean, fresh.mean});
    if (sum.spread.defined()) sum.spread = at::cat({sum.spread, fresh.spread});
    sum.instances += fresh.instances;
  } else {
    const double before = static_cast<double>(sum.elements);
    const double added = static_cast<double>(fresh.elements);
    const double total = before + added;
    const at::Tensor delta = fresh.mean - sum.mean;
    sum.mean = sum.mean + delta * (added / total);
    sum.spread = sum.spread + fresh.spread + delta * delta * (before * added / total);
    sum.elements += fresh.elements;
  }
}

void StatisticsLog::apply(Entry& entry) {
  if (entry.counter.defined()) entry.counter.add_(entry.by);
  Statistics& s = entry.statistics;
  if (entry.cumulative) s.momentum = 1.0 / entry.counter.item<double>();
  std::optional<CallerStateScope> modes;
  if (s.modes) modes.emplace(*s.modes);
  std::optional<ThreadsScope> threads;
  if (s.threads > 0) threads.emplace(s.threads);
  // Like the operators, which do not tell autograd that they write to these tensors.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (s.input.defined() && s.instances > 0) {
    at::instance_norm(s.input, {}, {}, s.running_mean, s.running_var, /*use_input_stats=*/true,
                      s.momentum, /*eps=*/1e-5, /*cudnn_enabled=*/false);
    return;
  }
  if (s.input.defined()) {
    at::batch_norm_update_stats(s.input, s.running_mean, s.running_var, s.momentum);
    return;
  }
  // With one element per channel the operator also gives infinity.
  if (s.elements > 0) s.spread = s.spread / static_cast<double>(s.elements - 1);
  auto renew = [&](const at::Tensor& running, const at::Tensor& fresh) {
    if (!running.defined() || !fresh.defined()) return;
    if (s.instances == 0) {
      running.copy_(blended(running, fresh, s.momentum));
      return;
    }
    const at::Tensor each = blended(running.repeat(s.instances), fresh, s.momentum);
    running.copy_(each.to(running.scalar_type()).view({s.instances, running.numel()}).mean(0));
  };
  renew(s.running_mean, s.mean);
  renew(s.running_var, s.spread);
}

std::vector<double> StatisticsLog::to_numbers(std::vector<StatisticsLog>& stages,
                                              const std::vector<at::Tensor>& buffers) {
  std::vector<double> numbers;
  const auto put_tensor = [&](const at::Tensor& tensor) {
    numbers.push_back(tensor.defined() ? static_cast<double>(tensor.numel()) : -1);
    if (!tensor.defined()) return;
    numbers.push_back(static_cast<double>(tensor.scalar_type()));
    const at::Tensor values = tensor.to(at::kCPU, at::kDouble).contiguous();
    numbers.insert(numbers.end(), values.const_data_ptr<double>(),
                   values.const_data_ptr<double>() + values.numel());
  };
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    stages[stage].settle();
    for (const Entry& entry : stages[stage].entries_) {
      TORCH_INTERNAL_ASSERT(entry.place.deferred && entry.place.any_order);
      const Statistics& statistics = entry.statistics;
      for (const int64_t number :
           {static_cast<int64_t>(stage), entry.place.micro_batch, entry.place.layer,
            number_of(entry.counter, buffers), number_of(statistics.running_mean, buffers),
            number_of(statistics.running_var, buffers), int64_t{entry.cumulative},
            entry.by.to<int64_t>(), statistics.instances, statistics.elements}) {
        numbers.push_back(static_cast<double>(number));
      }
      numbers.push_back(statistics.momentum);
      put_tensor(statistics.mean);
      put_tensor(statistics.spread);
    }
  }
  return numbers;
}

void StatisticsLog::add_numbers(std::vector<StatisticsLog>& stages,
                                const std::vector<at::Tensor>& buffers,
                                const std::vector<double>& numbers) {
  size_t next = 0;
  const auto number = [&] { return static_cast<int64_t>(numbers.at(next++)); };
  const auto buffer = [&] {
    const int64_t index = number();
    return index < 0 ? at::Tensor() : buffers.at(static_cast<size_t>(index));
  };
  const auto tensor = [&](const at::Tensor& like) -> at::Tensor {
    const int64_t count = number();
    if (count < 0) return {};
    const auto type = static_cast<c10::ScalarType>(number());
    at::Tensor values = at::empty({count}, at::kDouble);
    for (int64_t k = 0; k < count; ++k) {
      values.mutable_data_ptr<double>()[k] = numbers.at(next++);
    }
    return values.to(like.defined() ? like.device() : c10::Device(c10::kCPU), type);
  };
  while (next < numbers.size()) {
    StatisticsLog& log = stages.at(static_cast<size_t>(number()));
    Entry entry;
    entry.place.deferred = entry.place.any_order = true;
    entry.place.micro_batch = number();
    entry.place.layer = number();
    entry.counter = buffer();
    entry.statistics.running_mean = buffer();
    entry.statistics.running_var = buffer();
    entry.cumulative = number() != 0;
    entry.by = number();
    entry.statistics.instances = number();
    entry.statistics.elements = number();
    entry.statistics.momentum = numbers.at(next++);
    entry.statistics.mean = tensor(entry.statistics.running_mean);
    entry.statistics.spread = tensor(entry.statistics.running_var);
    log.settle();
    log.put(std::move(entry));
  }
}

std::vector<bool> StatisticsLog::updated(const std::vector<StatisticsLog>& stages,
                                         const std::vector<at::Tensor>& buffers) {
  std::vector<bool> updated(buffers.size(), false);
  for (const StatisticsLog& log : stages) {
    for (const Entry& entry : log.entries_) {
      for (const at::Tensor* tensor :
           {&entry.counter, &entry.statistics.running_mean, &entry.statistics.running_var}) {
        if (tensor->defined()) updated[static_cast<size_t>(number_of(*tensor, buffers))] = true;
      }
    }
  }
  return updated;
}

void StatisticsLog::commit(std::vector<StatisticsLog>& stages) {
  c10::NoGradGuard no_grad;
  std::vector<Entry> all;
  for (StatisticsLog& log : stages) {
    log.settle();
    log.merge_in_order();
    std::move(log.entries_.begin(), log.entries_.end(), std::back_inserter(all));
    log.entries_.clear();
    log.next_ = 0;
  }
  std::stable_sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) {
    auto key = [](const Place& place) {
      return std::pair(place.deferred ? int64_t{0} : place.micro_batch, place.layer);
    };
    return key(a.place) < key(b.place);
  });
  for (Entry& entry : all) apply(entry);
}

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

RunningStatisticsScope::~RunningStatisticsScope() { current_scope = former_; }

void RunningStatisticsScope::enter_layer(int64_t layer) {
  if (current_scope != nullptr) current_scope->place_.layer = layer;
}

RunningStatisticsScope* RunningStatisticsScope::current() { return current_scope; }

bool RunningStatisticsScope::takes_count(const at::Tensor& counter, const c10::Scalar& by) {
  const TrackedStatistics::Counter* known = tracked_.counter(counter);
  if (known == nullptr) return false;
  if (updates_at_once() && !tracked_.must_wait(stage_, counter)) {
    updated_.push_back(counter.unsafeGetTensorImpl());
    return false;
  }
  if (policy_ != RunningStatistics::kKeep) log_->count(place_, counter, known->cumulative, by);
  return true;
}

bool RunningStatisticsScope::takes_update(const at::Tensor& running_mean,
                                          const at::Tensor& running_var) {
  if (!updates_at_once()) return true;
  // If a counter was logged, its update must be logged too, because its momentum may depend on the
  // counter.
  if (tracked_.must_wait(stage_, running_mean) || tracked_.must_wait(stage_, running_var) ||
      log_->counts(place_)) {
    return true;
  }
  for (const at::Tensor* tensor : {&running_mean, &running_var}) {
    if (tensor->defined()) updated_.push_back(tensor->unsafeGetTensorImpl());
  }
  return false;
}

bool RunningStatisticsScope::has_updated(const at::Tensor& tensor) const {
  return std::find(updated_.begin(), updated_.end(), tensor.unsafeGetTensorImpl()) !=
         updated_.end();
}

void RunningStatisticsScope::update(StatisticsLog::Statistics statistics) {
  log_->update(place_, std::move(statistics));
}

}  // namespace gpipe::internal
