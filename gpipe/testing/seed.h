// test_seed: the one seed from which a test program draws.
//
// The seed is the same in each run, and NUMBER with GPIPE_TEST_SEED=NUMBER. The first failure of a
// test prints the seed. This file does not need LibTorch; torch_seed.h seeds LibTorch's generators.
#ifndef GPIPE_TESTING_SEED_H_
#define GPIPE_TESTING_SEED_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <random>
#include <string>

namespace gpipe::testing {

// GPIPE_TEST_SEED, or a fixed number. Throws std::invalid_argument if the variable is not a number.
uint64_t test_seed();

// A generator for each `stream`; it gives the same numbers at every call.
std::mt19937_64 test_random(uint64_t stream = 0);

// The seed that test_seed() reads from the variable's text; null or empty stands for unset.
uint64_t seed_from(const char* text);

// Lets `function` be called with test_seed() before each test suite and each test, so that what a
// test draws does not depend on the tests before it. Static initializers call it. Returns true.
bool before_each_test(void (*function)(uint64_t seed));

// Makes the listener that calls the functions of before_each_test(), and writes GPIPE_TEST_SEED=...
// with the first failure of each test. gpipe_cc_test's main installs it.
std::unique_ptr<::testing::TestEventListener> make_seed_listener(std::ostream& out);

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_SEED_H_
