// Makes GPUs compute the same bits in each run, because tests compare bits with those of the CPU or
// of another run. Before each test this file switches off cuDNN's rounding of convolutions' factors
// to TF32, and its algorithms that add in any order. It has no header: linking it suffices. It has
// no effect on other devices.

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
