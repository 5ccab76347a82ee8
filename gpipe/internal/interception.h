// Interception of operators inside a pipeline's cells, without touching the user's modules.
//
// A dispatch key that LibTorch leaves to experiments (TESTING_ONLY_GenericMode) is switched on for
// the threads that run a pipeline. Kernels registered for it see an operator before autograd and
// autocast do; every other operator falls through at no cost. Only one library of a process may
// register the fallthrough, and only one kernel can stand for an operator, so all that intercept do
// it here: random_streams.cc (random operators), batch_norm.cc (running statistics). A kernel looks
// at its own thread-local state and, where that is not set, hands on what it got: so all can be
// active at once.
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

// Of a kernel's keys those to go on with, so that its operator goes its usual way.
inline c10::DispatchKeySet after_interception(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptionKey);
}

// A unit's kernels, registered from when it is made until the process ends. To be made when they
// are first needed: by then every library that defines operators is loaded, and a pipeline in a
// static initializer has them, too.
//
// Example:
//   MyScope::MyScope() {
//     static const Interceptor interceptor([](torch::Library& aten) { aten.impl("sgn", &my_sgn);
//     });
//   }
class Interceptor {
 public:
  explicit Interceptor(void (*add)(torch::Library& aten));
};

// Calls `visit` with each operator of LibTorch's own and its name as torch::Library::impl wants it.
void for_each_aten_operator(
    const std::function<void(const c10::OperatorHandle& op, const char* name)>& visit);

// Switches interception on for this thread. With autograd's engine a graph executed inside the
// scope runs inside it, too.
class InterceptionScope {
 public:
  InterceptionScope();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

// Inside a kernel: the operators it calls go their usual way.
class InterceptionPause {
 public:
  InterceptionPause() : guard_(kInterceptionKey) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_INTERCEPTION_H_
