// irregular_profile: a profile whose layers are all different, for tests that compare predictions
// exactly.
#ifndef BALANCE_TESTING_IRREGULAR_PROFILE_H_
#define BALANCE_TESTING_IRREGULAR_PROFILE_H_

#include <cstdint>

#include "balance/costs/profile.h"

namespace gpipe::testing {

// Nine layers with skips, for micro-batches of 4 rows. Times are multiples of 1/128 s, so that
// their sums are the same in any order and on any machine. `halves`: whether the halves of
// backwards are measured.
inline balance::Profile irregular_profile(bool halves) {
  balance::Profile profile;
  profile.device = "device";
  profile.batch_rows = 4;
  profile.input = 1000;
  for (int64_t k = 0; k < 9; ++k) {
    balance::LayerProfile layer;
    layer.forward = static_cast<double>(1 + k * 7 % 5) / 64;
    layer.backward = static_cast<double>(3 + k * 5 % 7) / 64;
    layer.parameters = 100 + 10 * k;
    layer.buffers = k;
    layer.kept = 50 + 30 * (k % 4);
    layer.workspace = 20 + k * 11 % 17;
    layer.output = 64 + 32 * (k % 3);
    if (halves) {
      layer.split = balance::SplitBackward{layer.backward / 2 + 1.0 / 64, layer.backward / 2,
                                           20 + 10 * (k % 3)};
    }
    profile.layers.push_back(layer);
  }
  profile.skips = {{1, 7, 256}, {2, 3, 512}, {0, 4, 128}};
  return profile;
}

}  // namespace gpipe::testing

#endif  // BALANCE_TESTING_IRREGULAR_PROFILE_H_
