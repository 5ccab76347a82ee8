#include "gpipe/runtime/first_error.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace gpipe::internal {
namespace {

TEST(FirstError, KeepsTheFirst) {
  FirstError error;
  error.rethrow();  // there is no error yet
  EXPECT_TRUE(error.set(std::make_exception_ptr(std::runtime_error("first"))));
  EXPECT_FALSE(error.set(std::make_exception_ptr(std::logic_error("second"))));
  try {
    error.rethrow();
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_EQ(std::string(e.what()), "first");
  }
  error.rethrow();  // take() has forgotten the error
}

TEST(FirstError, KeepsWhatIsNotAnException) {
  FirstError error;
  error.set(std::make_exception_ptr(42));
  EXPECT_THROW(error.rethrow(), int);
}

}  // namespace
}  // namespace gpipe::internal
