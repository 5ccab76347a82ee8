#include "text/exception_text.h"

#include <c10/util/Exception.h>

namespace gpipe::text {

std::string message_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch == nullptr ? error.what() : of_torch->c10::Error::what_without_backtrace();
}

std::string message_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return message_of(error);
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace gpipe::text
