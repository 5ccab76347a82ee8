#include "interception/interception.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <deque>
#include <mutex>
#include <string>

namespace gpipe::internal {
namespace {

// Makes a new library of kernels for the key. Libraries are never unregistered, because a worker
// may outlive the destruction of static objects.
torch::Library& library(const char* name, c10::DispatchKey key) {
  static std::mutex mutex;
  static auto* const all = new std::deque<torch::Library>;
  std::lock_guard<std::mutex> lock(mutex);
  all->emplace_back(torch::Library::IMPL, name, key, __FILE__, __LINE__);
  return all->back();
}

// Makes every operator that has no kernel for the key fall through, once per process. Returns the
// key.
c10::DispatchKey falling_through() {
  [[maybe_unused]] static const bool registered = [] {
    library("_", kInterceptionKey).fallback(torch::CppFunction::makeFallthrough());
    return true;
  }();
  return kInterceptionKey;
}

}  // namespace

Interceptor::Interceptor(void (*add)(torch::Library& aten)) {
  add(library("aten", kInterceptionKey));
}

FallbackInterceptor::FallbackInterceptor(c10::DispatchKey key, void (*add)(torch::Library& all)) {
  add(library("_", key));
}

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

InterceptionScope::InterceptionScope() : guard_(falling_through()) {}

}  // namespace gpipe::internal
