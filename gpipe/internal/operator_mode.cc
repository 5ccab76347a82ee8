#include "gpipe/internal/operator_mode.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <vector>

#include "gpipe/internal/batch_norm.h"
#include "gpipe/internal/draws.h"

namespace gpipe::internal {
namespace {

// Registered at first use rather than at start-up, when not every library that defines operators
// need be loaded yet. Never unregistered: a worker may outlive static destruction.
const std::vector<torch::Library>& kernels() {
  static const auto* const registered = [] {
    auto* libraries = new std::vector<torch::Library>;
    libraries->emplace_back(torch::Library::IMPL, "_", kOperatorMode, __FILE__, __LINE__);
    libraries->back().fallback(torch::CppFunction::makeFallthrough());
    libraries->emplace_back(torch::Library::IMPL, "aten", kOperatorMode, __FILE__, __LINE__);
    register_random_kernels(libraries->back());
    register_running_statistics_kernels(libraries->back());
    return libraries;
  }();
  return *registered;
}

c10::DispatchKey registered_mode() {
  TORCH_INTERNAL_ASSERT(!kernels().empty());
  return kOperatorMode;
}

}  // namespace

OperatorModeScope::OperatorModeScope() : guard_(registered_mode()) {}

}  // namespace gpipe::internal
