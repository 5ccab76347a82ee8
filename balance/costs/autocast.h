// autocast: the autocast guard under which a profile or a plan is made, and its name.
#ifndef BALANCE_COSTS_AUTOCAST_H_
#define BALANCE_COSTS_AUTOCAST_H_

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace gpipe::balance {

// The type that autocast casts to on this thread for devices of this type: "bfloat16", "float16".
// Empty: autocast is off, or such devices do not support it.
std::string autocast_name(c10::DeviceType type);

// Parses the value of the commands' flag --autocast: "bfloat16", "float16". Returns none for an
// empty text. Throws std::invalid_argument for any other text.
std::optional<c10::ScalarType> parse_autocast(const std::string& text);
// The flag's text for --help.
std::string autocast_help();

// Enables autocast to `type` for devices of type `device` on this thread while it lives, and then
// restores what was set before. If `type` is none, it changes nothing.
class AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, std::optional<c10::ScalarType> type);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_;
  bool sets_;
  bool enabled_ = false;
  c10::ScalarType type_ = c10::ScalarType::Undefined;
};

// Disables autocast for devices of type `device` on this thread while it lives.
class WithoutAutocast {
 public:
  explicit WithoutAutocast(c10::DeviceType device);
  ~WithoutAutocast();
  WithoutAutocast(const WithoutAutocast&) = delete;
  WithoutAutocast& operator=(const WithoutAutocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_AUTOCAST_H_
