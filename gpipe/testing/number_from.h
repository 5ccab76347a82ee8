// number_from: a number that the user of a test gives it as an environment variable.
#ifndef GPIPE_TESTING_NUMBER_FROM_H_
#define GPIPE_TESTING_NUMBER_FROM_H_

#include <cstdint>
#include <cstdlib>

namespace gpipe::testing {

// The variable's number, as in GPIPE_PROGRAMS=8000; `otherwise` if it is not set.
inline uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_NUMBER_FROM_H_
