#include "gpipe/internal/failure.h"

#include <c10/util/Exception.h>

#include <stdexcept>
#include <typeinfo>

namespace gpipe::internal {
namespace {

// Throws a T with the longer message if `error` is exactly a T: rethrowing a class derived from T
// as a T would lose what the caller may want to catch.
template <typename T>
void rethrow_as(const std::exception& error, const std::string& where) {
  if (typeid(error) == typeid(T)) throw T(std::string(error.what()) + " (" + where + ")");
}

}  // namespace

void rethrow_with(std::exception_ptr error, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (c10::Error& e) {
    e.add_context(where);
    throw;
  } catch (const std::exception& e) {
    rethrow_as<std::runtime_error>(e, where);
    rethrow_as<std::logic_error>(e, where);
    rethrow_as<std::invalid_argument>(e, where);
    rethrow_as<std::domain_error>(e, where);
    rethrow_as<std::length_error>(e, where);
    rethrow_as<std::out_of_range>(e, where);
    rethrow_as<std::range_error>(e, where);
    rethrow_as<std::overflow_error>(e, where);
    rethrow_as<std::underflow_error>(e, where);
    throw;
  }
}

}  // namespace gpipe::internal
