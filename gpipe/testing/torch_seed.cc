#include "gpipe/testing/torch_seed.h"

#include <ATen/Context.h>

#include "gpipe/testing/seed.h"

namespace gpipe::testing {
namespace {

[[maybe_unused]] const bool registered =
    before_each_test([](uint64_t seed) { at::manual_seed(seed); });

}  // namespace

void manual_seed(uint64_t stream) { at::manual_seed(test_random(stream)()); }

}  // namespace gpipe::testing
