// Interception: kernels for operators that run inside a pipeline's cells, without changes to the
// user's modules.
//
// It uses a dispatch key that LibTorch leaves to experiments (TESTING_ONLY_GenericMode), switched
// on for the threads that run a pipeline. Kernels registered for it see an operator before autograd
// and autocast do; every other operator falls through at no cost. Only one library of a process may
// register the fallthrough, and only one kernel can replace an operator, so everything that
// intercepts does so here: random_streams.cc (random operators) and batch_norm.cc (running
// statistics). A kernel looks at its own thread-local state; if that is not set, it passes its
// arguments on unchanged. So all can be active at once.
#ifndef GPIPE_INTERNAL_INTERCEPTION_H_
#define GPIPE_INTERNAL_INTERCEPTION_H_

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>

namespace c10 {
class OperatorHandle;
}  // namespace c10
namespace torch {
class Library;
}  // namespace torch

namespace gpipe::internal {

inline constexpr c10::DispatchKey kInterceptionKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Of a kernel's dispatch keys, those that come after interception, so that the operator runs as
// usual.
inline c10::DispatchKeySet after_interception(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptionKey);
}

// A unit's kernels, registered from its construction until the process ends.
//
// Requirements: it is made when the kernels are first needed. By then every library that defines
// operators is loaded; and a pipeline in a static initializer has the kernels too.
//
// Example:
//   MyScope::MyScope() {
//     static const Interceptor interceptor(
//         [](torch::Library& aten) { aten.impl("sgn", &my_sgn); });
//   }
class Interceptor {
 public:
  explicit Interceptor(void (*add)(torch::Library& aten));
};

// Calls `visit` with each operator of LibTorch's own and with its name in the form that
// torch::Library::impl takes.
void for_each_aten_operator(
    const std::function<void(const c10::OperatorHandle& op, const char* name)>& visit);

// Switches interception on for this thread. A graph that autograd's engine executes from inside the
// scope also runs with interception on.
class InterceptionScope {
 public:
  InterceptionScope();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

// Used inside a kernel: the operators that it calls run as usual.
class InterceptionPause {
 public:
  InterceptionPause() : guard_(kInterceptionKey) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_INTERCEPTION_H_
