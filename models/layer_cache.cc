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

void LayerCache::allocate(const at::Tensor& keys, const at::Tensor& values) {
  if (!keys_.defined()) {
    const c10::InferenceMode normal(false);  // tensors that may be changed in any mode later
    const std::vector<int64_t> shape = {plan_->rows, keys.size(1), kept(window_, plan_->length),
                                        keys.size(3)};
    keys_ = at::zeros(shape, keys.options());
    values_ = at::zeros(shape, values.options());
    filled_.assign(plan_->rows, 0);
  }
  TORCH_CHECK_VALUE(
      keys.scalar_type() == keys_.scalar_type() && values.scalar_type() == values_.scalar_type(),
      "a KvCache has keys and values of ", keys_.scalar_type(), " and ", values_.scalar_type(),
      ", and now gets some of ", keys.scalar_type(), " and ", values.scalar_type(),
      "; make another one when the model's type or autocast has changed");
}

void LayerCache::put(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots) {
  const at::Tensor rows = slots.select(1, 0).floor_divide(plan_->length).view({-1, 1, 1});
  const at::Tensor heads = at::arange(keys.size(1), slots.options()).view({1, -1, 1});
  // No two tokens of a call in one place.
  const int64_t from = std::max<int64_t>(plan_->tokens - keys_.size(2), 0);
  const at::Tensor places =
      plan_->places(slots).slice(1, from).remainder(keys_.size(2)).unsqueeze(1);
  keys_.index_put_({rows, heads, places}, keys.slice(2, from));
  values_.index_put_({rows, heads, places}, values.slice(2, from));
  if (!slots.is_cpu()) return;
  const auto all = slots.accessor<int64_t, 2>();
  for (int64_t n = 0; n < all.size(0); ++n) {
    int64_t& filled = filled_[all[n][0] / plan_->length];
    filled = std::max(filled, all[n][0] % plan_->length + plan_->tokens);
  }
}

SeenTokens LayerCache::extend(const at::Tensor& keys, const at::Tensor& values,
                              const at::Tensor& slots) {
  allocate(keys, values);
  if (plan_->nothing_before) {
    put(keys, values, slots);
    return {};
  }
  const at::Tensor rows = slots.select(1, 0).floor_divide(plan_->length);
  if (keys_.size(2) == plan_->length) {
    put(keys, values, slots);
    return {keys_.narrow(2, 0, plan_->seen).index_select(0, rows),
            values_.narrow(2, 0, plan_->seen).index_select(0, rows),
            at::arange(plan_->seen, slots.options())};
  }
  // Before the new tokens take the place of those that the first of them still sees.
  const int64_t before = std::min(window_ - 1, plan_->seen - plan_->tokens);
  const at::Tensor places = plan_->places(slots);
  const at::Tensor old = places.slice(1, 0, 1) - before + at::arange(before, slots.options());
  const at::Tensor index = old.remainder(keys_.size(2)).unsqueeze(1);
  const at::Tensor row = rows.view({-1, 1, 1}),
                   heads = at::arange(keys.size(1), slots.options()).view({1, -1, 1});
  SeenTokens seen = {at::cat({keys_.index({row, heads, index}), keys}, 2),
                     at::cat({values_.index({row, heads, index}), values}, 2),
                     at::cat({old, places}, 1)};
  put(keys, values, slots);
  return seen;
}

void LayerCache::clear(int64_t row, int64_t begin, int64_t end) {
  if (!keys_.defined()) return;
  const at::NoGradGuard no_grad;
  const int64_t kept = keys_.size(2);
  for (const at::Tensor& tensor : {keys_, values_}) {
    const at::Tensor own = tensor.select(0, row);
    if (end - begin >= kept) {
      own.zero_();
      continue;
    }
    for (int64_t place = begin; place < end; ++place) own.select(1, place % kept).zero_();
  }
  filled_[row] = std::min(filled_[row], begin);
}

int64_t LayerCache::bytes() const {
  if (!keys_.defined()) return 0;
  return static_cast<int64_t>(keys_.nbytes() + values_.nbytes());
}

}  // namespace gpipe::models::internal
