#include "gpipe/internal/threads/caller_state.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_to_copy_ops.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/library.h>

#include "interception/interception.h"

namespace gpipe::internal {
namespace {

thread_local int cache_off_scopes = 0;

// Whether autocast would keep a cast of this tensor. It is not known here in which of autocast's
// ways the cast was asked for. That does not matter, because no other code switches the cache on.
bool would_be_kept(const at::Tensor& weight) {
  return weight.scalar_type() == at::kFloat && weight.requires_grad() && weight.is_leaf() &&
         !weight.is_view();
}

// Autocast casts a weight by this operator, and keeps the result if its cache is on. A kept cast is
// returned without a call of this operator, so the first cast must already be refused.
at::Tensor cast(c10::DispatchKeySet keys, const at::Tensor& self,
                std::optional<at::ScalarType> type, std::optional<at::Layout> layout,
                std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                std::optional<at::MemoryFormat> memory_format) {
  const InterceptionPause pause;
  TORCH_CHECK(
      cache_off_scopes == 0 || !at::autocast::is_autocast_cache_enabled() || !would_be_kept(self),
      // Python users see this text as it is, because LibTorch's operator throws it into their
      // layer.
      "autocast's cache of cast weights is switched on in a layer or a loss function "
      "(at::autocast::set_autocast_cache_enabled(true); in Python, a torch.autocast that decorates "
      "a function, or is made outside of it). The cache belongs to the process: stages would take "
      "and drop each other's casts, and gradients would depend on timing. A pipeline switches it "
      "off; leave it off in the layer's guard, as docs/guide/12-mixed-precision.md does (in "
      "Python, "
      "write `with torch.autocast(...)` in forward, or give it cache_enabled=False)");
  return at::_ops::_to_copy::redispatch(after_interception(keys), self, type, layout, device,
                                        pin_memory, non_blocking, memory_format);
}

}  // namespace

CallerState::CallerState()
    : without_tf32_(at::NoTF32Guard::should_disable_tf32()),
      optimizes_scripts_(torch::jit::getGraphExecutorOptimize()) {}

CallerStateScope::CallerStateScope(const CallerState& state)
    : state_(state.state_),
      floats_(state.floats_),
      optimized_scripts_(torch::jit::getGraphExecutorOptimize()) {
  if (state.without_tf32_) without_tf32_.emplace();
  torch::jit::setGraphExecutorOptimize(state.optimizes_scripts_);
}

CallerStateScope::~CallerStateScope() { torch::jit::setGraphExecutorOptimize(optimized_scripts_); }

AutocastCacheOff::AutocastCacheOff() : former_(at::autocast::is_autocast_cache_enabled()) {
  static const Interceptor interceptor(
      [](torch::Library& aten) { aten.impl("_to_copy", torch::CppFunction(cast)); });
  at::autocast::set_autocast_cache_enabled(false);
  ++cache_off_scopes;
}

AutocastCacheOff::~AutocastCacheOff() {
  --cache_off_scopes;
  at::autocast::set_autocast_cache_enabled(former_);
}

}  // namespace gpipe::internal
