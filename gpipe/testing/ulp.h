// ulp_distance: how far apart two floating-point numbers are, in units in the last place.
#ifndef GPIPE_TESTING_ULP_H_
#define GPIPE_TESTING_ULP_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

namespace gpipe::testing {

// How many steps from one number of `type` to the next lead from the element at `a` to the element
// at `b`; -0 and 0 count as one number. For complex numbers: the larger distance of the two parts.
// No value if a part differs and has no distance, because it is a NaN or its type does not have
// IEEE 754's layout.
std::optional<uint64_t> ulp_distance(c10::ScalarType type, const char* a, const char* b);

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_ULP_H_
