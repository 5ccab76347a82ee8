// Interception of operators inside a pipeline's cells, without touching the user's modules.
//
// A dispatch key that LibTorch leaves to experiments (TESTING_ONLY_GenericMode) is switched on for
// the threads that run a pipeline. Kernels registered for it see an operator before autograd and
// autocast do; every other operator falls through at no cost. Users of this key within gpipe:
// draws.h (random operators), batch_norm.h (running statistics).
#ifndef GPIPE_INTERNAL_OPERATOR_MODE_H_
#define GPIPE_INTERNAL_OPERATOR_MODE_H_

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace gpipe::internal {

inline constexpr c10::DispatchKey kOperatorMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Switches interception on for this thread; makes sure, once per process, that the kernels exist.
// With autograd's engine a graph executed inside the scope runs inside it, too.
class OperatorModeScope {
 public:
  OperatorModeScope();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

// Inside a kernel of the mode: the operators it calls go their usual way.
class OperatorModePause {
 public:
  OperatorModePause() : guard_(kOperatorMode) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATOR_MODE_H_
