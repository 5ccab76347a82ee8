// LeavingCopies: what leaves a cell in memory of its own, because somebody else may change it.
#ifndef GPIPE_INTERNAL_LEAVING_COPIES_H_
#define GPIPE_INTERNAL_LEAVING_COPIES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

#include "gpipe/internal/alias.h"
#include "gpipe/internal/model_state.h"

namespace gpipe::internal {

// Memory that is remembered and not kept: a freed one's address is nobody's.
using WeakStorages = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;
bool contains(const WeakStorages& storages, const c10::StorageImpl* storage);

// What leaves without a gradient leaves as a copy if somebody else may change it before it is used:
// a layer that fills one tensor again for every micro-batch. Values over one memory share a copy.
class LeavingCopies {
 public:
  // `leaving`: all that leaves; not copies of the tensors, since who holds them counts. `shared`:
  // memory that others under way have, too, and that must stay theirs. `record`: whether gradients
  // will be asked for.
  LeavingCopies(bool record, const ModelState& model, c10::ArrayRef<const at::Tensor*> leaving,
                const WeakStorages& shared);

  // Undefined: the tensor leaves over its own memory.
  at::Tensor of(const at::Tensor& tensor) const;

 private:
  struct Copy {
    const c10::StorageImpl* storage;
    at::Tensor memory;
    MemoryRange range;
  };
  void add(bool record, const ModelState& model, const at::Tensor& first,
           c10::ArrayRef<const at::Tensor*> leaving, const WeakStorages& shared);

  c10::SmallVector<Copy, 2> copies_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_LEAVING_COPIES_H_
