#include "models/blocks/layer_cache.h"

#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace gpipe::models::internal {
namespace {

// Whether the slots belong to rows of the plan's call, and only to those.
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

bool keeps_window(int64_t window, int64_t length) {
  return window > 0 && window - 1 < (length + 1) / 2;
}

int64_t kept_places(int64_t window, int64_t length) {
  return keeps_window(window, length) ? 2 * (window - 1) : length;
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
                      ": a call failed or was left out; truncate(", row, ", ",
                      keeps_window() ? 0 : filled, ") and give the others again");
  }
}

void LayerCache::allocate(const at::Tensor& keys, const at::Tensor& values) {
  if (!keys_.defined()) {
    const c10::InferenceMode normal(false);  // so that the tensors may be changed in any mode later
    const bool windowed = keeps_window();
    const std::vector<int64_t> shape = {windowed ? 2 * plan_->rows : plan_->rows, keys.size(1),
                                        windowed ? window_ - 1 : plan_->length, keys.size(3)};
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

SeenKeys LayerCache::update(const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& slots) {
  allocate(keys, values);
  at::Tensor own_keys = keys, own_values = values;
  if (plan_->ends_on_device.defined()) {
    const at::Tensor padding =
        plan_->places(slots).ge(plan_->lengths(slots)).unsqueeze(1).unsqueeze(-1);
    own_keys = keys.masked_fill(padding, 0);
    own_values = values.masked_fill(padding, 0);
  }
  SeenKeys seen = keeps_window() ? update_window(own_keys, own_values, slots)
                                 : update_all(own_keys, own_values, slots);
  if (!slots.is_cpu()) return seen;
  const auto all = slots.accessor<int64_t, 2>();
  for (int64_t n = 0; n < all.size(0); ++n) {
    const int64_t row = all[n][0] / plan_->length;
    filled_[row] = std::max(filled_[row], plan_->ends[row]);
  }
  return seen;
}

SeenKeys LayerCache::update_all(const at::Tensor& keys, const at::Tensor& values,
                                const at::Tensor& slots) {
  const at::Tensor rows = slots.select(1, 0).floor_divide(plan_->length);
  const at::Tensor heads = at::arange(keys.size(1), slots.options()).view({1, -1, 1});
  const at::Tensor places = plan_->places(slots).unsqueeze(1);
  keys_.index_put_({rows.view({-1, 1, 1}), heads, places}, keys);
  values_.index_put_({rows.view({-1, 1, 1}), heads, places}, values);
  if (plan_->nothing_before) return {};
  return {keys_.narrow(2, 0, plan_->seen).index_select(0, rows),
          values_.narrow(2, 0, plan_->seen).index_select(0, rows),
          at::arange(plan_->seen, slots.options()).unsqueeze(0)};
}

SeenKeys LayerCache::update_window(const at::Tensor& keys, const at::Tensor& values,
                                   const at::Tensor& slots) {
  const int64_t kept = window_ - 1;
  const at::Tensor rows = slots.select(1, 0).floor_divide(plan_->length);
  const at::Tensor half = plan_->half_on_device.to(slots.device()).index_select(0, rows);
  const at::Tensor from = (1 - half) * plan_->rows + rows, to = half * plan_->rows + rows;
  const at::Tensor begins = plan_->places(slots.slice(1, 0, 1));  // (N, 1)
  const at::Tensor added = plan_->lengths(slots) - begins;        // (N, 1): without padding
  SeenKeys seen;
  // If all texts are shorter than the window, the first columns are empty, and are not returned.
  const int64_t empty = std::max<int64_t>(kept - (plan_->seen - plan_->tokens), 0);
  const auto update = [&](at::Tensor& all, const at::Tensor& own) {
    const at::Tensor both = at::cat({all.index_select(0, from), own}, 2);
    const at::Tensor columns = (added + at::arange(kept, slots.options())).unsqueeze(1);
    const at::Tensor last =
        plan_->ends_on_device.defined()
            ? both.gather(2, columns.unsqueeze(-1).expand({-1, own.size(1), -1, own.size(3)}))
            : both.narrow(2, own.size(2), kept);
    all.index_copy_(0, to, last);
    return both.slice(2, empty);
  };
  seen.keys = update(keys_, keys);
  seen.values = update(values_, values);
  if (plan_->nothing_before) return {};
  seen.places = begins - kept + at::arange(empty, kept + plan_->tokens, slots.options());
  return seen;
}

void LayerCache::clear(int64_t row, int64_t tokens, int64_t place) {
  if (!keys_.defined()) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : {keys_, values_}) {
    if (!keeps_window()) {
      tensor.select(0, row).slice(1, place).zero_();
    } else if (place == 0) {
      for (const int64_t half : {0, 1}) tensor.select(0, half * plan_->rows + row).zero_();
    } else if (place < tokens) {
      const at::Tensor own = tensor.select(0, plan_->half[row] * plan_->rows + row);
      own.copy_(at::constant_pad_nd(own.slice(1, 0, own.size(1) - (tokens - place)),
                                    {0, 0, tokens - place, 0}));
    }
  }
  filled_[row] = std::min(filled_[row], place);
}

int64_t LayerCache::bytes() const {
  if (!keys_.defined()) return 0;
  return static_cast<int64_t>(keys_.nbytes() + values_.nbytes());
}

}  // namespace gpipe::models::internal
