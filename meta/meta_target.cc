#include "meta/meta_target.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace gpipe {
namespace {

std::atomic<c10::DeviceType> target{c10::DeviceType::CPU};

}  // namespace

c10::DeviceType meta_target() { return target; }

MetaTargetScope::MetaTargetScope(c10::DeviceType target_of_scope) : former_(target) {
  TORCH_CHECK_VALUE(target_of_scope == c10::kCPU || target_of_scope == c10::kCUDA,
                    "meta tensors cannot stand for tensors on ",
                    c10::DeviceTypeName(target_of_scope, /*lower_case=*/true),
                    "; give c10::kCPU or c10::kCUDA");
  target = target_of_scope;
}

MetaTargetScope::~MetaTargetScope() { target = former_; }

}  // namespace gpipe
