// torch seed: seeds LibTorch's generators in tests.
//
// Before each test LibTorch's global generators are seeded with test_seed(): those of the CPU and,
// if this process has used GPUs, those of the GPUs. gpipe_cc_test links this file into each test
// that lists //third_party:torch.
#ifndef GPIPE_TESTING_TORCH_SEED_H_
#define GPIPE_TESTING_TORCH_SEED_H_

#include <cstdint>

namespace gpipe::testing {

// Tests call this instead of torch::manual_seed(stream), because it gives other draws for each
// stream and each test_seed().
void manual_seed(uint64_t stream = 0);

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_TORCH_SEED_H_
