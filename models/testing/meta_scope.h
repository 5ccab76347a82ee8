#ifndef MODELS_TESTING_META_SCOPE_H_
#define MODELS_TESTING_META_SCOPE_H_

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace gpipe::models::testing {

// While it lives, tensors that this thread makes with at::empty, and so the parameters of every
// module it builds, are on the meta device: shapes without memory. For counting models larger than
// any machine; they cannot run.
//
// It registers kernels for DispatchKey::TESTING_ONLY_GenericMode: at most one library in a program
// may register a fallback for that key, so do not link it where the pipeline does the same.
class MetaScope {
 public:
  MetaScope();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace gpipe::models::testing

#endif  // MODELS_TESTING_META_SCOPE_H_
