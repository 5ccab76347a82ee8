#include "models/layer_cache.h"

#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace gpipe::models::internal {
namespace {

// Whether the slots are those of some rows of the plan's call.
bool of_plan(const CachePlan& plan, const at::Tensor& slots) {
  if (!slots.defined() || slots.dim() != 2 || slots.scalar_type() != at::kLong ||
      slots.size(1) != plan.tokens) {
    return false;
  }
  if (!slots.is_cpu()) return true;
  const auto all = slots.accessor<int64_t, 2>();
  for (int64_t n = 0; n < all.size(0); ++n) {
    if (plan.tokens == 0) continue;
    const int64_t first = all[n][0], row = first / plan.length;
    if (first < 0 || row >= plan.rows || plan.begins[row] != first % plan.length) return false;
    for (int64_t t = 1; t < plan.tokens; ++t) {
      if (all[n][t] != first + t) return false;
    }
  }
  return true;
}

}  // namespace

void CachePlan::check(const at::Tensor& slots, bool training) const {
  TORCH_CHECK_VALUE(!training,
                    "a model with a KvCache is in training mode; call eval() before, or end the "
                    "cache before it is trained");
  TORCH_CHECK_VALUE(
      !c10::GradMode::is_enabled(),
      "a model with a KvCache was called with gradients enabled, and what is kept has "
      "none; call it under torch::NoGradGuard or through evaluate(), or end the "
      "cache before it is trained");
  TORCH_CHECK_VALUE(of_plan(*this, slots),
                    "a model with a KvCache must be given what KvCache::inputs() gave last; it was "
                    "given other tokens or rows, beside token ids of ",
                    tokens, " tokens. (Over processes all of them call inputs().)");
}

at::Tensor CachePlan::places(const at::Tensor& slots) const { return slots.remainder(length); }

at::Tensor CachePlan::lengths(const at::Tensor& slots) const {
  if (!ends_on_device.defined()) return places(slots.slice(1, -1)) + 1;
  const at::Tensor rows = slots.select(1, 0).floor_divide(length);
  return ends_on_device.to(slots.device()).index_select(0, rows).unsqueeze(1);
}

void LayerCache::check_complete(const at::Tensor& slots) const {
  if (!slots.is_cpu() || slots.numel() == 0) return;
  const auto all = slots.accessor<int64_t, 2>();
  for (int64_t n = 0; n < all.size(0); ++n) {
    const int64_t row = all[n][0] / plan_->length;
    const int64_t before = all[n][0] % plan_->length;
    const int64_t filled = filled_.empty() ? 0 : filled_[row];
    TORCH_CHECK_VALUE(before <= filled, "row ", row, " of the KvCache counts ", before,
                      " tokens before these, of which the model has been given ", filled,
                      ": a call failed or was left out; truncate(", row, ", ", filled,
                      ") and give the others again");
  }
}

void LayerCache::put(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots) {
  if (!keys_.defined()) {
    const c10::InferenceMode normal(false);  // tensors that may be changed in any mode later
    const std::vector<int64_t> shape = {plan_->rows, keys.size(1), plan_->length, keys.size(3)};
    keys_ = at::zeros(shape, keys.options());
    values_ = at::zeros(shape, values.options());
    filled_.assign(plan_->rows, 0);
  }
  TORCH_CHECK_VALUE(
      keys.scalar_type() == keys_.scalar_type() && values.scalar_type() == values_.scalar_type(),
      "a KvCache has keys and values of ", keys_.scalar_type(), " and ", values_.scalar_type(),
      ", and now gets some of ", keys.scalar_type(), " and ", values.scalar_type(),
      "; make another one when the model's type or autocast has changed");
  const at::Tensor rows = slots.select(1, 0).floor_divide(plan_->length).view({-1, 1, 1});
  const at::Tensor heads = at::arange(keys.size(1), slots.options()).view({1, -1, 1});
  const at::Tensor places = plan_->places(slots).unsqueeze(1);
  at::Tensor own_keys = keys, own_values = values;
  if (plan_->ends_on_device.defined()) {
    const at::Tensor padding = places.ge(plan_->lengths(slots).unsqueeze(1)).unsqueeze(-1);
    own_keys = keys.masked_fill(padding, 0);
    own_values = values.masked_fill(padding, 0);
  }
  keys_.index_put_({rows, heads, places}, own_keys);
  values_.index_put_({rows, heads, places}, own_values);
  if (!slots.is_cpu()) return;
  const auto all = slots.accessor<int64_t, 2>();
  for (int64_t n = 0; n < all.size(0); ++n) {
    const int64_t row = all[n][0] / plan_->length;
    filled_[row] = std::max(filled_[row], plan_->ends[row]);
  }
}

std::pair<at::Tensor, at::Tensor> LayerCache::get(const at::Tensor& slots) const {
  const at::Tensor rows = slots.select(1, 0).floor_divide(plan_->length);
  return {keys_.narrow(2, 0, plan_->seen).index_select(0, rows),
          values_.narrow(2, 0, plan_->seen).index_select(0, rows)};
}

void LayerCache::clear(int64_t row, int64_t place) {
  if (!keys_.defined()) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : {keys_, values_}) {
    tensor.select(0, row).slice(1, place).zero_();
  }
  filled_[row] = std::min(filled_[row], place);
}

int64_t LayerCache::bytes() const {
  if (!keys_.defined()) return 0;
  return static_cast<int64_t>(keys_.nbytes() + values_.nbytes());
}

}  // namespace gpipe::models::internal
