// SeenByAutogradScope: a thread-local pointer that autograd's threads see, too.
//
// Nodes on accelerators run on threads of autograd's engine. The engine copies to them only the
// thread-local state that LibTorch knows. Debug info is part of that, and LibTorch leaves some of
// its kinds for free use.
#ifndef GPIPE_INTERNAL_THREADS_SEEN_BY_AUTOGRAD_H_
#define GPIPE_INTERNAL_THREADS_SEEN_BY_AUTOGRAD_H_

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace gpipe::internal {

// Pointers of one kind of debug info must all point to a T, in the whole process.
//
// Thread-safety: none is needed. The thread that owns the pointer is in autograd's engine, and does
// not change the pointer, while autograd's threads run a node on its behalf and look at it.
template <c10::DebugInfoKind (*kind)(), typename T>
class SeenByAutogradScope {
 public:
  // `pointer`, of the calling thread, outlives the scope. `*pointer` may change while the scope
  // lives.
  explicit SeenByAutogradScope(T* const* pointer)
      : guard_(kind(), std::make_shared<Info>(pointer)) {}

  // Returns the present pointer of the thread on whose behalf autograd uses this thread. Null if
  // there is none.
  static T* current() {
    const auto* info = static_cast<const Info*>(c10::ThreadLocalDebugInfo::get(kind()));
    return info == nullptr ? nullptr : *info->pointer;
  }

 private:
  struct Info : c10::DebugInfoBase {
    explicit Info(T* const* pointer) : pointer(pointer) {}
    T* const* pointer;
  };
  c10::DebugInfoGuard guard_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_SEEN_BY_AUTOGRAD_H_
