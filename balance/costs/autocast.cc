#include "balance/costs/autocast.h"

#include <ATen/autocast_mode.h>

#include "absl/strings/ascii.h"
#include "command/wrong_value.h"

namespace gpipe::balance {

std::string autocast_name(c10::DeviceType type) {
  if (!at::autocast::is_autocast_available(type) || !at::autocast::is_autocast_enabled(type)) {
    return "";
  }
  switch (const c10::ScalarType dtype = at::autocast::get_autocast_dtype(type)) {
    case c10::kBFloat16:
      return "bfloat16";
    case c10::kHalf:
      return "float16";
    default:
      return absl::AsciiStrToLower(c10::toString(dtype));
  }
}

std::optional<c10::ScalarType> parse_autocast(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "bfloat16") return c10::kBFloat16;
  if (text == "float16") return c10::kHalf;
  throw command::wrong_value("autocast", text,
                             "give bfloat16 or float16, or leave it out for none");
}

std::string autocast_help() {
  return "Run the layers and the loss under autocast to this type, as a training loop with a guard "
         "does: bfloat16, float16. Default: none.";
}

AutocastGuard::AutocastGuard(c10::DeviceType device, std::optional<c10::ScalarType> type)
    : device_(device), sets_(type.has_value()) {
  if (!sets_) return;
  enabled_ = at::autocast::is_autocast_enabled(device);
  type_ = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_dtype(device, *type);
  at::autocast::set_autocast_enabled(device, true);
}

AutocastGuard::~AutocastGuard() {
  if (!sets_) return;
  at::autocast::set_autocast_enabled(device_, enabled_);
  at::autocast::set_autocast_dtype(device_, type_);
}

WithoutAutocast::WithoutAutocast(c10::DeviceType device)
    : device_(device), enabled_(at::autocast::is_autocast_enabled(device)) {
  at::autocast::set_autocast_enabled(device, false);
}

WithoutAutocast::~WithoutAutocast() { at::autocast::set_autocast_enabled(device_, enabled_); }

}  // namespace gpipe::balance
