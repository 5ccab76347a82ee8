#include "gpipe/internal/boundary/arriving.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/twins.h"

namespace gpipe::internal {
namespace {

// Whether only this check would notice that a layer changed the tensor in place.
bool must_watch(const Boundary& boundary, bool record, const Item& item) {
  // Constant inputs of the first stage are not watched here, because CallerInputs notices their
  // changes.
  if (item.constant && boundary.stage > 0) return true;
  return item.read_only && (may_have_gradient(record, item.tensor) || boundary.copies);
}

void note_memory(const Item& item, LayersResult& result) {
  if (storage_of(item.tensor) == nullptr) return;
  const auto note = [&](bool marked, WeakStorages& memory) {
    if (marked) memory.emplace_back(item.tensor.storage().getWeakStorageImpl());
  };
  note(item.read_only, result.read_only);
  note(item.shared, result.shared);
  note(item.constant, result.constant);
}

}  // namespace

void check_arrived(const Boundary& boundary, bool record, std::vector<Packet>& inputs) {
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto& skip = boundary.ports.inputs[k].skip;
    for (Item& item : inputs[k].items) {
      if (!item.is_changed()) continue;
      // Without a gradient only the value matters, and it is the plain model's value unless
      // something was copied.
      TORCH_CHECK(!may_have_gradient(record, item.tensor) && !boundary.copies,
                  skip ? "the skip " + skip->to_text() : "an input", " of stage ", boundary.stage,
                  " was changed in place by a layer of another stage after it had been handed over "
                  "(its memory went several ways); the gradients would miss the change. Hand on a "
                  "clone(), make that layer not in-place, or move the cut");
      item.mark_version();
    }
  }
}

std::vector<std::vector<at::Tensor>> attach(const Boundary& boundary, bool record,
                                            const std::vector<Packet>& inputs, LayersResult& result,
                                            ReadOnlyInputs& read_only) {
  std::vector<std::vector<at::Tensor>> tensors(inputs.size());
  Twins<at::Tensor> attached;
  for (size_t k = 0; k < inputs.size(); ++k) {
    tensors[k].reserve(inputs[k].items.size());
    for (const Item& item : inputs[k].items) {
      const at::Tensor* const twin = attached.find(item.tensor);
      at::Tensor alias = twin != nullptr ? *twin : detached_alias(item.tensor);
      if (twin == nullptr) {
        if (must_watch(boundary, record, item)) {
          alias = counted_alias(alias);
          read_only.watch(alias);
        }
        attached.add(item.tensor, alias);
      }
      result.graph.inputs().add(k, alias, twin == nullptr && record && item.needs_grad);
      tensors[k].push_back(std::move(alias));
      note_memory(item, result);
    }
  }
  return tensors;
}

}  // namespace gpipe::internal
