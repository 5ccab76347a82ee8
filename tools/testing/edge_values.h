// EdgeRow: a row of the tests named edge_test: a public function, one of its arguments, and calls
// with values at which code often breaks. Each call returns, or throws a documented exception.
//
// tools/testing/check_edges.py says which public functions have no row.
#ifndef TOOLS_TESTING_EDGE_VALUES_H_
#define TOOLS_TESTING_EDGE_VALUES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::testing {

struct EdgeRow {
  std::string function;
  std::string argument;
  struct Call {
    std::string value;
    std::function<void()> run;
  };
  std::vector<Call> calls;

  friend std::ostream& operator<<(std::ostream& stream, const EdgeRow& row) {
    return stream << row.function << ": " << row.argument;
  }
};

// A row of whole numbers at which code often breaks. `call` is called with each value.
inline EdgeRow integers(std::string function, std::string argument,
                        const std::function<void(int64_t)>& call) {
  EdgeRow row{std::move(function), std::move(argument), {}};
  using Limits = std::numeric_limits<int64_t>;
  // 2^32 + 1 becomes 1 if a number is cut to 32 bits.
  for (const int64_t value :
       {int64_t{0}, int64_t{-1}, (int64_t{1} << 32) + 1, Limits::max(), Limits::min()}) {
    row.calls.push_back({std::to_string(value), [=] { call(value); }});
  }
  return row;
}

inline EdgeRow numbers(std::string function, std::string argument,
                       const std::function<void(double)>& call) {
  EdgeRow row{std::move(function), std::move(argument), {}};
  using Limits = std::numeric_limits<double>;
  for (const double value : {0.0, -1.0, Limits::denorm_min(), 1e-300, 1e300, Limits::max(),
                             Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    row.calls.push_back({std::to_string(value), [=] { call(value); }});
  }
  return row;
}

// A row of wrong lengths: 0, and the right length minus and plus 1. `call` is called with each
// length.
inline EdgeRow lengths(std::string function, std::string argument, size_t right,
                       const std::function<void(size_t)>& call) {
  EdgeRow row{std::move(function), std::move(argument), {}};
  for (const size_t length : {size_t{0}, right - 1, right + 1}) {
    row.calls.push_back({std::to_string(length) + " values", [=] { call(length); }});
  }
  return row;
}

inline EdgeRow texts(std::string function, std::string argument,
                     const std::function<void(const std::string&)>& call) {
  EdgeRow row{std::move(function), std::move(argument), {}};
  for (const std::string& value :
       {std::string(), std::string(1, '\0'), std::string("-1"), std::string("nan"),
        std::string("9223372036854775808"), std::string("{}"), std::string("[[["),
        std::string(1000, '9'), std::string("\xff\n")}) {
    row.calls.push_back({"'" + value.substr(0, 30) + "'", [=] { call(value); }});
  }
  return row;
}

// A row with any other calls.
inline EdgeRow calls(std::string function, std::string argument, std::vector<EdgeRow::Call> calls) {
  return {std::move(function), std::move(argument), std::move(calls)};
}

template <typename Documented>
bool is_a(const std::exception& error) {
  return dynamic_cast<const Documented*>(&error) != nullptr;
}

// Expects that each call of the row returns, or throws one of the documented types or a type
// derived from one.
template <typename... Documented>
void expect_documented(const EdgeRow& row) {
  for (const EdgeRow::Call& call : row.calls) {
    try {
      call.run();
    } catch (const std::exception& error) {
      EXPECT_TRUE((is_a<Documented>(error) || ...))
          << row.argument << " " << call.value << ": " << error.what();
    }
  }
}

}  // namespace gpipe::testing

#endif  // TOOLS_TESTING_EDGE_VALUES_H_
