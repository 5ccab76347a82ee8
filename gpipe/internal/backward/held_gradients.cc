#include "gpipe/internal/backward/held_gradients.h"

#include <ATen/ops/allclose.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <utility>

#include "gpipe/internal/backward/gradient_memory.h"
#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

std::atomic<bool> checks_held_gradients{false};

}  // namespace

template <typename Visit>
void HeldGradients::for_each_shared(const Visit& visit) {
  c10::SmallVector<at::Tensor*, 16> maybe;
  for (HeldBack& entry : entries) {
    for (at::Tensor& gradient : entry.gradients) {
      if (!gradient.defined()) continue;
      const bool alone = gradient.use_count() == 1 && storage_of(gradient) != nullptr &&
                         gradient.storage().use_count() == 1;
      if (!alone) maybe.push_back(&gradient);
    }
  }
  for_each_memory(std::move(maybe), [&](c10::ArrayRef<at::Tensor*> gradients) {
    if (shared_with_others(gradients)) visit(gradients);
  });
}

void HeldGradients::take_possession() {
  for_each_shared(move_away);
  if (checks_held_gradients) copies_ = copies_of_gradients();
}

void HeldGradients::check() {
  if (copies_.empty()) return;
  for_each_shared([](c10::ArrayRef<at::Tensor*>) {
    TORCH_INTERNAL_ASSERT(false,
                          "a gradient that was held back shares its memory with another tensor");
  });
  const torch::autograd::variable_list now = copies_of_gradients();
  for (size_t k = 0; k < copies_.size(); ++k) {
    TORCH_INTERNAL_ASSERT(at::allclose(now[k], copies_[k], 0, 0, /*equal_nan=*/true),
                          "a gradient was changed while it was held back");
  }
  copies_.clear();
}

torch::autograd::variable_list HeldGradients::copies_of_gradients() const {
  torch::autograd::variable_list result;
  for (const HeldBack& entry : entries) {
    for (const at::Tensor& gradient : entry.gradients) {
      if (gradient.defined()) result.push_back(values_of(gradient).detach().clone());
    }
  }
  return result;
}

void check_held_gradients(bool on) { checks_held_gradients = on; }

}  // namespace gpipe::internal
