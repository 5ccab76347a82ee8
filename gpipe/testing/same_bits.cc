// Tests compare bits, with the CPU or from one run to the next. On GPUs cuDNN would otherwise round
// the factors of its convolutions to TF32, and choose algorithms that add in any order. It has no
// header: linking it does that before each test. Other devices do not care.

#include <ATen/Context.h>

#include <cstdint>

#include "gpipe/testing/seed.h"

namespace gpipe::testing {
namespace {

[[maybe_unused]] const bool registered = before_each_test([](uint64_t /*seed*/) {
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
});

}  // namespace
}  // namespace gpipe::testing
