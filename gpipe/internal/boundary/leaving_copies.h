// LeavingCopies: copies of outputs that leave a cell in memory of their own, because other code may
// change the original.
#ifndef GPIPE_INTERNAL_BOUNDARY_LEAVING_COPIES_H_
#define GPIPE_INTERNAL_BOUNDARY_LEAVING_COPIES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

#include "gpipe/internal/model/model_state.h"
#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {

// Weak pointers to storages: they do not keep the memory alive, and the address of freed memory
// matches nothing.
using WeakStorages = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;
bool contains(const WeakStorages& storages, const c10::StorageImpl* storage);

// An output without a gradient leaves its cell as a copy if other code may change it before it is
// used, e.g. a layer that fills the same tensor again for every micro-batch. Outputs over the same
// memory share a copy, even if they read it in different ways: as another dtype, conjugated,
// negated.
class LeavingCopies {
 public:
  // `leaving`: pointers to all tensors that leave, not copies of them, because the number of
  // references counts. `staying`: memory that is not copied, because other tensors on their way
  // must keep it, too, or because nothing changes it. `record`: whether gradients will be asked
  // for.
  LeavingCopies(bool record, const ModelState& model, c10::ArrayRef<const at::Tensor*> leaving,
                const WeakStorages& staying);

  // The tensor's counterpart in the copy; undefined if the tensor leaves over its own memory.
  at::Tensor of(const at::Tensor& tensor) const;

 private:
  struct Copy {
    const c10::StorageImpl* storage;
    const c10::TensorImpl* whole;  // a tensor that is not plain memory (e.g. sparse), or null
    at::Tensor memory;
    MemoryRange range;
  };
  void add(bool record, const ModelState& model, const at::Tensor& first,
           c10::ArrayRef<const at::Tensor*> leaving, const WeakStorages& staying);
  void add_whole(const at::Tensor& tensor, c10::ArrayRef<const at::Tensor*> leaving);

  c10::SmallVector<Copy, 2> copies_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BOUNDARY_LEAVING_COPIES_H_
