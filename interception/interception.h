// Interception: sees operators before LibTorch runs them, without changing the modules that call
// them.
//
// LibTorch leaves a few dispatch keys to experiments. A key that is switched on for a thread lets
// kernels of ours see an operator before autograd and autocast do, and pass it on. A key can have
// one fallback in a process, and an operator one kernel for a key. So all interception is done
// here, and units that may want the same operator have different keys. Outermost first:
//
// - kFactoryKey, in a MetaScope (meta/meta_scope.cc). One kernel for all operators decides on which
// device a tensor is made. It comes first, because the random numbers for a tensor depend on its
// device.
// - kInterceptionKey, in a pipeline's cells. Kernels for single operators: random ones
//   (gpipe/internal/operators/random_streams.cc), updates of running statistics
//   (gpipe/internal/operators/batch_norm.cc). Every other operator falls through at no cost.
// - kMetaAutocastKey, in a MetaAutocastScope (meta/meta_autocast.cc). One kernel for all operators:
//   it lets autocast see meta tensors, which it would not cast.
//
// A kernel checks which scopes are open on its thread, and passes on operators that none of them is
// for. So all keys can be active at once, and any may be missing in a program.
#ifndef INTERCEPTION_INTERCEPTION_H_
#define INTERCEPTION_INTERCEPTION_H_

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

inline constexpr c10::DispatchKey kFactoryKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
inline constexpr c10::DispatchKey kInterceptionKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
// This key is also left to experiments. It comes just before autocast's own keys.
inline constexpr c10::DispatchKey kMetaAutocastKey = c10::DispatchKey::DeferredInit;

// The keys with which a kernel passes its operator on, so that the operator goes its usual way.
inline c10::DispatchKeySet after_interception(c10::DispatchKeySet keys,
                                              c10::DispatchKey key = kInterceptionKey) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
}

// Registers a unit's kernels, until the process ends. An Interceptor must be made when the kernels
// are first needed, and not earlier. By then every library that defines operators is loaded, and a
// pipeline in a static initializer has the kernels, too.
//
// Thread-safety: any thread may make one at any time.
//
// Example:
//   MyScope::MyScope() {
//     static const Interceptor interceptor([](torch::Library& aten) { aten.impl("sgn", &my_sgn);
//     });
//   }
class Interceptor {
 public:
  // `add` gets LibTorch's own operators under kInterceptionKey.
  explicit Interceptor(void (*add)(torch::Library& aten));
};

// Registers a kernel that is the same for all operators, for a key that has such a kernel
// (kFactoryKey, kMetaAutocastKey). `add` gets all operators and gives them that fallback.
class FallbackInterceptor {
 public:
  FallbackInterceptor(c10::DispatchKey key, void (*add)(torch::Library& all));
};

// Calls `visit` with each of LibTorch's own operators and its name as torch::Library::impl wants
// it.
void for_each_aten_operator(
    const std::function<void(const c10::OperatorHandle& op, const char* name)>& visit);

// Switches kInterceptionKey on for this thread. With autograd's engine a graph executed inside the
// scope runs inside it, too.
class InterceptionScope {
 public:
  InterceptionScope();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

// Used inside a kernel of kInterceptionKey: the operators that the kernel calls are not
// intercepted.
class InterceptionPause {
 public:
  InterceptionPause() : guard_(kInterceptionKey) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace gpipe::internal

#endif  // INTERCEPTION_INTERCEPTION_H_
