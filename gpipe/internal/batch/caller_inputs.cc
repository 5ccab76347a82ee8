#include "gpipe/internal/batch/caller_inputs.h"

#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/twins.h"

namespace gpipe::internal {
namespace {

// Returns a copy of a tensor of inference mode. Such tensors do not count changes, so a layer's
// change would reach all micro-batches unnoticed.
at::Tensor counting_changes(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_inference()) return tensor;
  const c10::InferenceMode no_inference(false);
  const c10::NoGradGuard no_grad;
  return tensor.clone();
}

}  // namespace

CallerInputs::CallerInputs(Packet whole, MiniBatch mini_batch, bool record,
                           const std::vector<int64_t>& shared)
    : whole_(std::move(whole)),
      mini_batch_(std::move(mini_batch)),
      record_(record),
      shared_(whole_.items.size()) {
  for (const int64_t input : shared) shared_[input] = true;
  for (size_t k = 0; k < whole_.items.size(); ++k) {
    if (shared_[k]) whole_.items[k].tensor = counting_changes(whole_.items[k].tensor);
    const at::Tensor& tensor = whole_.items[k].tensor;
    memory_of_.push_back(-1);
    if (!tensor.defined() || tensor.is_inference()) continue;
    const c10::StorageImpl* storage = storage_of(tensor);
    for (size_t n = 0; n < memories_.size() && storage != nullptr; ++n) {
      const size_t other = memories_[n].input;
      // The caller may change an input that is cut. That must not count as a change of a shared
      // input that lies in the same storage.
      if (memories_[n].storage == storage &&
          (shared_[k] == shared_[other] || may_overlap(tensor, whole_.items[other].tensor))) {
        memory_of_[k] = static_cast<int>(n);
      }
    }
    if (memory_of_[k] >= 0) continue;
    memory_of_[k] = static_cast<int>(memories_.size());
    Memory memory{storage, k, VersionMark(tensor), {}};
    for (int64_t i = 0; i < mini_batch_.micro_batches(); ++i) {
      memory.of_micro_batches.emplace_back(/*version=*/0);
    }
    memories_.push_back(std::move(memory));
  }
}

Packet CallerInputs::micro_batch(int64_t i) const {
  Packet packet;
  packet.kind = whole_.kind;
  Twins<size_t> twins[2];  // [0]: inputs that are cut; [1]: shared inputs
  for (size_t k = 0; k < whole_.items.size(); ++k) {
    const Item& item = whole_.items[k];
    // A tensor that is given twice stays a single tensor, unless it is given whole and cut.
    if (const size_t* const twin = twins[shared_[k]].find(item.tensor)) {
      packet.items.push_back(packet.items[*twin]);
      continue;
    }
    twins[shared_[k]].add(item.tensor, k);
    at::Tensor rows = shared_[k] ? detached_alias(item.tensor) : mini_batch_.slice(item.tensor, i);
    if (memory_of_[k] >= 0) {
      rows.unsafeGetTensorImpl()->set_version_counter(memories_[memory_of_[k]].of_micro_batches[i]);
    }
    Item piece;
    piece.tensor = std::move(rows);
    piece.needs_grad = item.needs_grad;
    piece.read_only = shared_[k];
    piece.constant = shared_[k];
    piece.mark_version();
    packet.items.push_back(std::move(piece));
  }
  // Tensors that overlap become read-only, because autograd does not take them for views of each
  // other here.
  for (size_t k = 0; record_ && k < packet.items.size(); ++k) {
    for (size_t n = 0; n < k; ++n) {
      Item& a = packet.items[k];
      Item& b = packet.items[n];
      if (are_twins(a.tensor, b.tensor)) continue;
      if (may_overlap(a.tensor, b.tensor)) a.read_only = b.read_only = true;
    }
  }
  return packet;
}

void CallerInputs::finish_forward() {
  whole_ = Packet();
  std::optional<size_t> changed_shared;
  for (Memory& memory : memories_) {
    bool changed = false;
    for (const auto& version : memory.of_micro_batches) changed |= version.current_version() > 0;
    if (changed) memory.of_caller.bump();
    for (size_t k = 0; changed && k < shared_.size(); ++k) {
      const bool is_this = memory_of_[k] >= 0 && &memories_[memory_of_[k]] == &memory;
      if (shared_[k] && is_this && !changed_shared) changed_shared = k;
    }
  }
  // The marks are renewed in a second loop, because two memories may be in one storage, which has
  // one counter.
  for (Memory& memory : memories_) memory.of_caller.renew();
  TORCH_CHECK_VALUE(!changed_shared, "a layer changed input ", *changed_shared,
                    " in place, which is the same for all micro-batches "
                    "(GPipeOptions::shared_inputs); make it not in-place, or clone() before");
}

at::Tensor CallerInputs::join_gradients(const std::vector<Packet>& gradients, size_t input) const {
  return shared_[input] ? sum_gradients(gradients, input)
                        : mini_batch_.join_gradients(gradients, input);
}

std::optional<size_t> CallerInputs::changed_by_caller() {
  std::optional<size_t> input;
  for (Memory& memory : memories_) {
    if (!memory.of_caller.is_changed()) continue;
    memory.of_caller.renew();
    for (auto& version : memory.of_micro_batches) version.bump();
    if (!input) input = memory.input;
  }
  return input;
}

}  // namespace gpipe::internal
