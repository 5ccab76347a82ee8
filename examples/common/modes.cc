#include "examples/common/modes.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>

namespace examples {

Autocast::Autocast(at::DeviceType device, bool bfloat16) : device_(device), on_(bfloat16) {
  if (!on_) return;
  at::autocast::set_autocast_dtype(device, at::kBFloat16);
  at::autocast::set_autocast_enabled(device, true);
}

Autocast::~Autocast() {
  if (!on_) return;
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, false);
}

KeepsGenerator::KeepsGenerator() : state_(at::detail::getDefaultCPUGenerator().get_state()) {}

KeepsGenerator::~KeepsGenerator() {
  at::Generator(at::detail::getDefaultCPUGenerator()).set_state(state_);
}

}  // namespace examples
