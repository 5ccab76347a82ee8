// MetaScope: builds models on the meta device, to count their parameters without memory.
#ifndef MODELS_TESTING_META_SCOPE_H_
#define MODELS_TESTING_META_SCOPE_H_

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace gpipe::models::testing {

// While it lives, tensors that this thread makes with at::empty, and so the parameters of every
// module it builds, are on the meta device: they have shapes but no memory. It is for counting
// models that are larger than any machine; such models cannot run.
//
// Requirements: it registers kernels for DispatchKey::TESTING_ONLY_GenericMode. At most one library
// in a program may register a fallback for that key, so do not link it where the pipeline does the
// same.
class MetaScope {
 public:
  MetaScope();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace gpipe::models::testing

#endif  // MODELS_TESTING_META_SCOPE_H_
