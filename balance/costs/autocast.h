// autocast: the guard of autocast under which a profile or a plan is made, and its name in them.
#ifndef BALANCE_COSTS_AUTOCAST_H_
#define BALANCE_COSTS_AUTOCAST_H_

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace gpipe::balance {

// What autocast casts to on devices of this type, as it is enabled on this thread: "bfloat16",
// "float16". Empty: it is not enabled, or there is none for such devices.
std::string autocast_name(c10::DeviceType type);

// What the values of the commands' flag --autocast mean: "bfloat16", "float16". None for an empty
// text. Throws std::invalid_argument for any other one.
std::optional<c10::ScalarType> parse_autocast(const std::string& text);
// For --help.
std::string autocast_help();

// While it lives, autocast to `type` is enabled on this thread for devices of type `device`. None:
// all stays as it is. Restores what was there before.
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

// While it lives, autocast is off on this thread for devices of that type.
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
