#include "gpipe/distributed/control/exception_text.h"

#include <c10/util/Exception.h>

#include <exception>

namespace gpipe::distributed {

std::string text_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace gpipe::distributed
