#include "models/testing/meta_scope.h"

#include <ATen/Functions.h>
#include <torch/library.h>

namespace gpipe::models::testing {
namespace {

constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

at::Tensor empty_on_meta(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pin_memory*/,
                         std::optional<at::MemoryFormat> memory_format) {
  c10::impl::ExcludeDispatchKeyGuard guard(kMode);
  return at::empty_symint(size, dtype, layout, at::Device(at::kMeta), std::nullopt, memory_format);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("empty.memory_format", empty_on_meta);
}

}  // namespace

MetaScope::MetaScope() : guard_(kMode) {}

}  // namespace gpipe::models::testing
