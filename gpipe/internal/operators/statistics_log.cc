#include "gpipe/internal/operators/statistics_log.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/instance_norm.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "gpipe/internal/operators/gathering.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/threads/cpu_threads.h"

namespace gpipe::internal {
namespace {

// Sets this thread's number of intra-op threads, and restores it on exit. If the number is equal,
// it is not set, because at::set_num_threads also changes the number of threads that start later.
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

// The result is computed in double and rounded once.
at::Tensor blended(const at::Tensor& running, const at::Tensor& fresh, double momentum) {
  return fresh.to(at::kDouble) * momentum + running.to(at::kDouble) * (1 - momentum);
}

// Returns the index of `tensor` in `buffers`, or -1 if it is undefined.
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

}  // namespace

void StatisticsLog::count(const Place& place, const at::Tensor& counter, bool cumulative,
                          const c10::Scalar& by) {
  settle();
  counted_ = Entry{place, counter, cumulative, by, {}};
}

bool StatisticsLog::counts(const Place& place) const {
  return counted_ && counted_->place.micro_batch == place.micro_batch &&
         counted_->place.layer == place.layer;
}

void StatisticsLog::update(const Place& place, Statistics statistics, bool cumulative) {
  Entry entry;
  if (counts(place)) {
    entry = std::move(*counted_);
    counted_.reset();
    entry.cumulative = entry.cumulative || cumulative;
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
    // Micro-batches usually make the same calls in the same order, so the search mostly ends at the
    // first entry.
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

// Statistics of batch norms are merged by the pairwise update of Chan, Golub, LeVeque (1979), which
// loses no digits by cancellation, unlike a sum of squares.
void StatisticsLog::merge(Statistics& sum, Statistics& fresh) {
  const GatheringScope gathering;  // the sum belongs to no cell
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
  // Autograd is not told that the log writes to these tensors, because LibTorch's operators do not
  // tell it of such updates either.
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
  // If there is one element per channel, this divides by 0, and gives infinity as the operator
  // does.
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

StatisticsLog::Updates StatisticsLog::updates(std::vector<StatisticsLog>& stages,
                                              const std::vector<at::Tensor>& buffers,
                                              c10::Device device) {
  std::vector<double> numbers;
  std::vector<at::Tensor> moments = {at::empty({0}, at::TensorOptions(device).dtype(at::kDouble))};
  const auto put_tensor = [&](const at::Tensor& tensor) {
    numbers.push_back(tensor.defined() ? static_cast<double>(tensor.numel()) : -1);
    if (!tensor.defined()) return;
    numbers.push_back(static_cast<double>(tensor.scalar_type()));
    moments.push_back(tensor.to(device, at::kDouble).reshape({-1}));
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
  return {std::move(numbers), at::cat(moments)};
}

void StatisticsLog::add(std::vector<StatisticsLog>& stages, const std::vector<at::Tensor>& buffers,
                        const Updates& updates) {
  const std::vector<double>& numbers = updates.numbers;
  size_t next = 0;
  int64_t begin = 0;  // in the moments
  const auto number = [&] { return static_cast<int64_t>(numbers.at(next++)); };
  const auto buffer = [&] {
    const int64_t index = number();
    return index < 0 ? at::Tensor() : buffers.at(static_cast<size_t>(index));
  };
  const auto tensor = [&](const at::Tensor& like) -> at::Tensor {
    const int64_t count = number();
    if (count < 0) return {};
    const auto type = static_cast<c10::ScalarType>(number());
    const at::Tensor values = updates.moments.narrow(0, begin, count);
    begin += count;
    return like.defined() ? values.to(like.device(), type) : values.to(type);
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

}  // namespace gpipe::internal
