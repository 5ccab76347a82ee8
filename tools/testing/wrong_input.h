// WrongInput: a row of the tests named wrong_input_test: a call with wrong input, and how it is
// refused.
#ifndef TOOLS_TESTING_WRONG_INPUT_H_
#define TOOLS_TESTING_WRONG_INPUT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <ostream>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace gpipe::testing {

// `Args`: what the test passes to the call of every row, such as an object that must outlive it.
template <typename... Args>
struct WrongInput {
  std::string name;  // the test's name: letters, digits and underscores
  std::function<void(Args...)> call;
  std::type_index type;            // the exact type of the exception, not a base of it
  std::vector<std::string> parts;  // texts in its message: what was given, what to do

  friend std::ostream& operator<<(std::ostream& stream, const WrongInput& row) {
    return stream << row.name;
  }
};

// The message without the place in our code and the backtrace, which LibTorch appends.
inline std::string message_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from"));
}

template <typename... Args>
void expect_refused(const WrongInput<Args...>& row, Args... args) {
  try {
    row.call(std::forward<Args>(args)...);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception& error) {
    const std::string message = message_of(error);
    EXPECT_EQ(std::type_index(typeid(error)).name(), std::string(row.type.name())) << message;
    for (const std::string& part : row.parts) EXPECT_THAT(message, ::testing::HasSubstr(part));
  }
}

// For INSTANTIATE_TEST_SUITE_P: names the tests after the rows.
inline constexpr auto row_name = [](const auto& info) { return info.param.name; };

}  // namespace gpipe::testing

#endif  // TOOLS_TESTING_WRONG_INPUT_H_
