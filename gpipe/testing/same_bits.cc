// Tests compare bits, with the CPU or between runs. Before each test this switches off cuDNN's
// rounding of convolutions' factors to TF32, and its algorithms that add in any order. It has no
// header: linking it suffices. It has no effect on other devices.

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
