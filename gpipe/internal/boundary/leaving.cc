#include "gpipe/internal/boundary/leaving.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include "gpipe/internal/boundary/leaving_copies.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/twins.h"

namespace gpipe::internal {
namespace {

struct Leaving {
  const at::Tensor* tensor;
  int64_t target;  // the stage that the tensor goes to
  Item* item;
};

// Marks an output by its own properties, and by the marks that its memory had when it arrived.
void mark(const CellPlan& plan, const LayersResult& result, const Leaving& leaving) {
  const at::Tensor& tensor = *leaving.tensor;
  Item& item = *leaving.item;
  item.needs_grad = plan.record && tensor.defined() && tensor.requires_grad();
  const c10::StorageImpl* const storage = storage_of(tensor);
  if (storage == nullptr) return;
  item.read_only = plan.model.owns(storage) || contains(result.read_only, storage);
  item.shared = contains(result.shared, storage);
  item.constant = contains(result.constant, storage);
}

// Marks two outputs that leave together, if they share memory.
void mark_beside(const Boundary& boundary, bool record, const Leaving& leaving,
                 const Leaving& other) {
  if (are_twins(*leaving.tensor, *other.tensor)) {
    // Two tensors that go to the same stage become one tensor again, unless each is copied.
    if (leaving.target == other.target && !boundary.copies) return;
  } else if (!may_overlap(*leaving.tensor, *other.tensor)) {
    return;
  }
  leaving.item->shared = other.item->shared = true;
  // The tensors are marked even if neither needs a gradient yet, because a parameter that enters by
  // a change in place would need a gradient through both.
  if (!may_have_gradient(record, *leaving.tensor) && !boundary.copies) return;
  // The stage that gets the memory first must not change it.
  if (leaving.target <= other.target) leaving.item->read_only = true;
  if (other.target <= leaving.target) other.item->read_only = true;
}

// Memory that LeavingCopies must not copy. If packets are copied, constant memory may be copied,
// too, because it may be the stage's own memory, which a recorded graph overwrites.
WeakStorages staying(const Boundary& boundary, const LayersResult& result) {
  WeakStorages memory = result.shared;
  if (!boundary.copies) {
    memory.insert(memory.end(), result.constant.begin(), result.constant.end());
  }
  return memory;
}

}  // namespace

void HandedOver::check(const at::Tensor& tensor, LayerName layer) {
  const c10::StorageImpl* const storage = storage_of(tensor);
  if (storage == nullptr || !tensor.requires_grad()) return;
  const int64_t version = version_of(tensor);
  const auto [entry, fresh] =
      memory_.try_emplace(storage, Memory{tensor.storage().getWeakStorageImpl(), version});
  TORCH_CHECK(fresh || entry->second.version == version, layer(),
              " returned a tensor in the memory of one that it had returned for an earlier "
              "micro-batch, and has changed since; the stages behind would see the new values. "
              "Return a new tensor, or a clone()");
}

std::vector<Packet> leave(const Boundary& boundary, const CellPlan& plan,
                          const LayersResult& result, HandedOver& handed_over, LayerName layer) {
  c10::SmallVector<Leaving, 4> leaving;
  c10::SmallVector<const at::Tensor*, 4> tensors;
  std::vector<Packet> packets(result.outputs.size());
  for (size_t k = 0; k < result.outputs.size(); ++k) {
    const Value& output = result.outputs[k];
    packets[k].kind = output.kind;
    packets[k].items.resize(output.tensors.size());
    for (size_t n = 0; n < output.tensors.size(); ++n) {
      leaving.push_back(
          {&output.tensors[n], boundary.ports.outputs[k].stage, &packets[k].items[n]});
      tensors.push_back(&output.tensors[n]);
    }
  }
  const LeavingCopies copies(plan.record, plan.model, tensors, staying(boundary, result));
  Twins<at::Tensor> left;
  for (size_t a = 0; a < leaving.size(); ++a) {
    const at::Tensor& tensor = *leaving[a].tensor;
    Item& item = *leaving[a].item;
    mark(plan, result, leaving[a]);
    for (size_t b = 0; b < a; ++b) mark_beside(boundary, plan.record, leaving[a], leaving[b]);
    if (const at::Tensor* const twin = left.find(tensor)) {
      item.tensor = *twin;
    } else {
      item.tensor = copies.of(tensor);
      if (!item.tensor.defined()) {
        if (plan.record) handed_over.check(tensor, layer);
        item.tensor = detached_alias(tensor);
      }
      left.add(tensor, item.tensor);
    }
    item.mark_version();
  }
  return packets;
}

}  // namespace gpipe::internal
