#include "gpipe/internal/interception.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace gpipe::internal {
namespace {

using AddKernels = void (*)(torch::Library& aten);

// A function's static variable: static initializers of other files add to it.
std::vector<AddKernels>& interceptors() {
  static auto* const all = new std::vector<AddKernels>;
  return *all;
}

// Registered at first use rather than at start-up, when not every library that defines operators
// need be loaded yet. Never unregistered: a worker may outlive static destruction.
const std::vector<torch::Library>& kernels() {
  static const auto* const registered = [] {
    auto* libraries = new std::vector<torch::Library>;
    libraries->emplace_back(torch::Library::IMPL, "_", kInterceptionKey, __FILE__, __LINE__);
    libraries->back().fallback(torch::CppFunction::makeFallthrough());
    libraries->emplace_back(torch::Library::IMPL, "aten", kInterceptionKey, __FILE__, __LINE__);
    for (const AddKernels add : interceptors()) add(libraries->back());
    return libraries;
  }();
  return *registered;
}

c10::DispatchKey registered_key() {
  TORCH_INTERNAL_ASSERT(!kernels().empty());
  return kInterceptionKey;
}

}  // namespace

Interceptor::Interceptor(AddKernels add) { interceptors().push_back(add); }

void for_each_aten_operator(
    const std::function<void(const c10::OperatorHandle& op, const char* name)>& visit) {
  const std::string prefix = "aten::";
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind(prefix, 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    std::string full_name = name.name.substr(prefix.size());
    if (!name.overload_name.empty()) full_name += "." + name.overload_name;
    visit(*op, full_name.c_str());
  }
}

InterceptionScope::InterceptionScope() : guard_(registered_key()) {}

}  // namespace gpipe::internal
