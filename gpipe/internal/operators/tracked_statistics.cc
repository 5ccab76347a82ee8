#include "gpipe/internal/operators/tracked_statistics.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

constexpr int64_t kShared = StatisticsUse::kSeveral;
constexpr char kCounterName[] = "num_batches_tracked";

// The three kinds of batch norm of LibTorch have no common base class with these members.
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

}  // namespace

void TrackedStatistics::add(int64_t stage, torch::nn::Module& layer) {
  modules_.emplace_back();
  if (const std::optional<BatchNorm> norm = as_batch_norm(layer)) {
    for (const at::Tensor* tensor : {&norm->counter, &norm->running_mean, &norm->running_var}) {
      own(stage, *tensor, layer.is_training());
    }
    if (norm->counter.defined()) {
      Counter& counter = counters_.try_emplace(norm->counter.unsafeGetTensorImpl()).first->second;
      counter.cumulative = counter.cumulative || norm->cumulative;
      counter.is_norms = true;
    }
  }
  const auto buffers = layer.named_buffers(/*recurse=*/false);
  // A norm has its counter beside its running statistics. Any other layer may have a buffer of that
  // name.
  const bool has_statistics = std::any_of(buffers.begin(), buffers.end(), [](const auto& buffer) {
    return buffer.value().defined() && buffer.value().is_floating_point();
  });
  for (const auto& buffer : buffers) {
    own(stage, buffer.value(), layer.is_training());
    if (buffer.key() == kCounterName && has_statistics) {
      counters_.try_emplace(buffer.value().unsafeGetTensorImpl());
    }
  }
  for (const std::shared_ptr<torch::nn::Module>& child : layer.children()) {
    if (child != nullptr) add(stage, *child);
  }
}

void TrackedStatistics::own(int64_t stage, const at::Tensor& tensor, bool trains) {
  // A tensor on meta has no values that could depend on timing.
  if (!tensor.defined() || tensor.is_meta()) return;
  modules_.back().push_back(tensor);  // keeps it alive
  if (trains) training_.insert(tensor.unsafeGetTensorImpl());
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

bool TrackedStatistics::trains(const at::Tensor& tensor) const {
  if (training_.contains(tensor.unsafeGetTensorImpl())) return true;
  const c10::StorageImpl* const memory = storage_of(tensor);
  if (training_.empty() || memory == nullptr) return false;
  const auto is_alias = [&](const at::Tensor& other) {
    return storage_of(other) == memory && training_.contains(other.unsafeGetTensorImpl());
  };
  return std::any_of(modules_.begin(), modules_.end(), [&](const auto& tensors) {
    return std::any_of(tensors.begin(), tensors.end(), is_alias);
  });
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
  // A tensor that no layer has registered may be a layer's temporary tensor, made for this update
  // alone.
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

}  // namespace gpipe::internal
